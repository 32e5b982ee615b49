"""Starts processes in all the ways that Python has, with more memory than may be resident.
Children change the memory that they inherited; no other process sees these changes."""

import multiprocessing
import os
import subprocess

kept = bytearray(range(256)) * (48 << 10)
words = {key: str(key) for key in range(60_000)}
total = sum(kept)


def check():
    assert sum(kept) == total and all(words[key] == str(key) for key in range(0, 60_000, 7))


def work(first):
    check()
    kept[first] ^= 255
    words[7 * first] = "changed"
    assert sum(kept) != total and words[7 * first] == "changed"
    kept[first] ^= 255
    words[7 * first] = str(7 * first)
    return first


def shell():
    script = "for number in 1 2 3; do echo $(echo $(expr $number + 1)); done"
    said = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout
    assert said.split() == ["2", "3", "4"], said


multiprocessing.set_start_method("fork")
with multiprocessing.Pool(3) as pool:
    assert pool.map(work, range(12)) == list(range(12))
process = multiprocessing.Process(target=work, args=(13,))
process.start()
process.join()
assert process.exitcode == 0
shell()
child = os.fork()
if child == 0:
    check()
    shell()
    kept[5] ^= 1
    grandchild = os.fork()
    if grandchild == 0:
        kept[5] ^= 1
        check()
        os._exit(8)
    assert os.waitstatus_to_exitcode(os.waitpid(grandchild, 0)[1]) == 8
    assert sum(kept) != total
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
# With a function that runs between fork and exec.
said = subprocess.run(["echo", "fine"], preexec_fn=lambda: kept.append(1), capture_output=True, text=True, check=True)
assert said.stdout == "fine\n" and os.system("exit 3") == 3 << 8
check()
print("all is well")
