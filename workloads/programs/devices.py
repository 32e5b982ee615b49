"""Python's os, io and mmap modules on a device of 1 MiB, named by the argument."""

import errno
import mmap
import os
import shutil
import subprocess
import sys

PATH = sys.argv[1]
SIZE = 1 << 20
PATTERN = bytes((at * 5 + at // 512) % 256 for at in range(SIZE))


def fails(error, call, *arguments):
    try:
        call(*arguments)
    except OSError as raised:
        assert raised.errno == error, (call, arguments, raised)
    else:
        raise AssertionError(f"{call} {arguments} was expected to fail")


# io: buffered streams, written and read.
with open(PATH, "wb") as file:
    file.write(PATTERN)
with open(PATH, "rb") as file:
    assert file.read() == PATTERN
assert os.stat(PATH).st_size == SIZE

device = os.open(PATH, os.O_RDWR)
assert os.pread(device, 100, 777) == PATTERN[777:877]
assert os.pwrite(device, b"x" * 700, 4000) == 700
assert os.pread(device, 702, 3999) == PATTERN[3999:4000] + b"x" * 700 + PATTERN[4700:4701]
assert os.pwrite(device, PATTERN[4000:4700], 4000) == 700
parts = [bytearray(10), bytearray(600)]
assert os.preadv(device, parts, 5) == 610 and bytes(parts[0]) == PATTERN[5:15] and bytes(parts[1]) == PATTERN[15:615]
assert os.pwritev(device, [PATTERN[:3], PATTERN[3:1000]], 0, os.RWF_DSYNC) == 1000
assert os.pread(device, 10, SIZE) == b"" and os.pread(device, 100, SIZE - 10) == PATTERN[-10:]
fails(errno.ENOSPC, os.pwrite, device, b"x", SIZE)
fails(errno.EINVAL, os.lseek, device, 0, os.SEEK_DATA)
fails(errno.EINVAL, os.lseek, device, 0, os.SEEK_HOLE)
assert os.lseek(device, 0, os.SEEK_END) == SIZE
os.fsync(device)
os.fdatasync(device)

# Calls that a program makes before it fills a file succeed, up to the size of the device.
os.ftruncate(device, SIZE)
os.ftruncate(device, 0)
fails(errno.EFBIG, os.ftruncate, device, SIZE + 1)
os.truncate(PATH, 0)
os.posix_fallocate(device, 0, SIZE)
assert os.fstat(device).st_size == SIZE and os.pread(device, SIZE, 0) == PATTERN

# No call may move data past the device.
with open("copy", "w+b") as copy:
    fails(errno.EINVAL, os.sendfile, copy.fileno(), device, 0, 4096)
    fails(errno.EINVAL, os.copy_file_range, device, copy.fileno(), 4096, 0, 0)
    reading, writing = os.pipe()
    fails(errno.EINVAL, os.splice, device, writing, 4096, 0)
shutil.copyfile(PATH, "copy")
assert open("copy", "rb").read() == PATTERN
shutil.copyfile("copy", PATH)
for flags in (mmap.MAP_SHARED, mmap.MAP_PRIVATE):
    fails(errno.ENODEV, mmap.mmap, device, 4096, flags)

# Duplicates, also at low numbers, share the position. A child inherits them.
low = os.dup2(device, 9)
os.lseek(device, 1000, os.SEEK_SET)
assert os.read(low, 10) == PATTERN[1000:1010] and os.read(device, 10) == PATTERN[1010:1020]
fails(errno.ENODEV, mmap.mmap, low, 4096)
program = "import os; print(os.read(9, 10).hex())"
said = subprocess.run([sys.executable, "-E", "-c", program], pass_fds=[9], capture_output=True, check=True)
assert bytes.fromhex(said.stdout.decode()) == PATTERN[1020:1030]
assert os.read(low, 10) == PATTERN[1030:1040]
child = os.fork()
if child == 0:
    os._exit(os.pwrite(low, b"child", 0) != 5)
assert os.waitpid(child, 0)[1] == 0 and os.pread(device, 5, 0) == b"child"

# The access mode and O_APPEND are the file's.
only_reads = os.open(PATH, os.O_RDONLY)
fails(errno.EBADF, os.write, only_reads, b"x")
only_writes = os.open(PATH, os.O_WRONLY | os.O_APPEND)
fails(errno.EBADF, os.read, only_writes, 1)
assert os.write(only_writes, b"C") == 1 and os.pread(device, 5, 0) == b"Child"
fails(errno.EEXIST, os.open, PATH, os.O_RDWR | os.O_CREAT | os.O_EXCL)

# The device by other names for its file, and sent through a socket.
os.symlink(os.path.abspath(PATH), "link")
assert open("link", "rb").read(5) == b"Child"
assert open(f"/proc/self/fd/{device}", "rb").read(5) == b"Child"
os.unlink("link")
os.unlink("copy")

print("all held")
