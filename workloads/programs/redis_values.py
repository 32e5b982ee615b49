"""Fills a Redis server on a Unix socket with values of 1,000 bytes and reads all of them back.
Then prints the server's resident memory and shuts the server down."""

import socket
import sys
import time

path, count = sys.argv[1], int(sys.argv[2])
BATCH = 500

for _ in range(600):
    server = socket.socket(socket.AF_UNIX)
    try:
        server.connect(path)
        break
    except OSError:
        time.sleep(0.1)
answers = server.makefile("rb")


def value(key):
    return (b"%08d" % key) * 125


def command(*words):
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


def bulk():
    length = int(answers.readline()[1:])
    return answers.read(length + 2)[:-2]


for first in range(0, count, BATCH):
    keys = range(first, min(first + BATCH, count))
    server.sendall(b"".join(command(b"SET", b"key%d" % key, value(key)) for key in keys))
    for _ in keys:
        assert answers.readline() == b"+OK\r\n"
for first in range(0, count, BATCH):
    keys = range(first, min(first + BATCH, count))
    server.sendall(b"".join(command(b"GET", b"key%d" % key) for key in keys))
    for key in keys:
        assert bulk() == value(key), key
server.sendall(command(b"INFO", b"memory"))
lines = bulk().decode().split("\r\n")
print(next(line.split(":")[1] for line in lines if line.startswith("used_memory_rss:")))
server.sendall(command(b"SHUTDOWN", b"NOSAVE"))
