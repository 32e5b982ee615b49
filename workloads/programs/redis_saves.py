"""Drives a Redis server on a Unix socket that saves values of 1,000 bytes from a forked child.
`PATH COUNT save`: starts the save, changes the values meanwhile, and checks that the server has the new values.
`PATH COUNT load`: checks that a server that was started from the saved file has the old values.
In both cases the script then shuts the server down."""

import socket
import sys
import time

path, count, what = sys.argv[1], int(sys.argv[2]), sys.argv[3]
BATCH = 500

for _ in range(600):
    server = socket.socket(socket.AF_UNIX)
    try:
        server.connect(path)
        break
    except OSError:
        time.sleep(0.1)
server.settimeout(300)
answers = server.makefile("rb")


def value(key, generation):
    return (b"%d%07d" % (generation, key)) * 125


def command(*words):
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


def ask(*words):
    server.sendall(command(*words))
    answer = answers.readline()
    return answers.read(int(answer[1:]) + 2)[:-2] if answer[:1] == b"$" else answer


def batches():
    return (range(first, min(first + BATCH, count)) for first in range(0, count, BATCH))


def put(generation):
    for keys in batches():
        server.sendall(b"".join(command(b"SET", b"key%d" % key, value(key, generation)) for key in keys))
        for _ in keys:
            assert answers.readline() == b"+OK\r\n"


def check(generation):
    for key in range(count):
        assert ask(b"GET", b"key%d" % key) == value(key, generation), (key, generation)


while ask(b"PING") != b"+PONG\r\n":
    time.sleep(0.1)
if what == "save":
    put(1)
    for generation in 2, 3:
        said = ask(b"BGSAVE")
        assert said.startswith(b"+Background saving started"), said
        put(generation)
        while b"rdb_bgsave_in_progress:1" in (said := ask(b"INFO", b"persistence")):
            time.sleep(0.05)
        assert b"rdb_last_bgsave_status:ok" in said, said
        check(generation)
else:
    check(2)
print("has them")
server.sendall(command(b"SHUTDOWN", b"NOSAVE"))
