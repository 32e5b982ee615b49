// A POSIX record lock of the program survives requests, registrations and rings on the same file:
// none of these counts as a close(2) of it.
#include <fcntl.h>
#include <liburing.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static int number;

// Returns whether another process sees the lock.
static int is_locked(void) {
    pid_t child = fork();
    if (child == 0) {
        struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
        int other = open("record_locks.file", O_RDWR);
        _exit(fcntl(other, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WEXITSTATUS(status);
}

static void expect_lock(const char *when) {
    if (!is_locked()) {
        printf("the lock is gone %s\n", when);
        exit(1);
    }
    number++;
}

static void complete(struct io_uring *ring) {
    struct io_uring_cqe *cqe;
    io_uring_submit(ring);
    if (io_uring_wait_cqe(ring, &cqe) || cqe->res < 0) {
        printf("a request failed: %d\n", cqe->res);
        exit(1);
    }
    io_uring_cqe_seen(ring, cqe);
}

int main(void) {
    struct io_uring ring;
    int file = open("record_locks.file", O_RDWR | O_CREAT, 0600);
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    if (file < 0 || fcntl(file, F_SETLK, &lock) || io_uring_queue_init(8, &ring, 0)) {
        puts("cannot begin");
        return 1;
    }
    expect_lock("before anything");
    // A worker carries out syncs and buffered writes, and holds the file meanwhile.
    for (int round = 0; round < 8; round++) {
        io_uring_prep_fsync(io_uring_get_sqe(&ring), file, 0);
        complete(&ring);
        io_uring_prep_write(io_uring_get_sqe(&ring), file, "x", 1, round);
        complete(&ring);
    }
    expect_lock("after requests");
    io_uring_register_files(&ring, &file, 1);
    expect_lock("while the file is registered");
    io_uring_unregister_files(&ring);
    expect_lock("after it was unregistered");
    io_uring_register_files(&ring, &file, 1);
    io_uring_queue_exit(&ring);
    expect_lock("after the ring was closed");
    close(file);
    if (is_locked()) {
        puts("close(2) of the file itself did not give the lock up");
        return 1;
    }
    printf("%d checks hold\n", number);
    return 0;
}
