/*
 * Makes plain system calls that the dynamic loader does not make, and prints their results. A run
 * under strace and a run under usring with the same rules must print the same results.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define SHOW(call)                                                                          \
	do {                                                                                \
		errno = 0;                                                                  \
		long result = (call);                                                       \
		printf("%s = %ld %s\n", #call, result, result < 0 ? strerror(errno) : ""); \
	} while (0)

static char output[1 << 16];

int main(void)
{
	char byte[8];
	/* The program writes its output only at the end: no rule must count the calls of stdio. */
	setvbuf(stdout, output, _IOFBF, sizeof output);
	int file = open("file", O_RDWR | O_CREAT | O_TRUNC, 0600);
	for (int number = 0; number < 7; number++)
		SHOW(pwrite(file, "hello", 5, number));
	for (int number = 0; number < 7; number++)
		SHOW(read(file, byte, 1));
	for (int number = 0; number < 5; number++)
		SHOW(fsync(file));
	for (int number = 0; number < 3; number++)
		SHOW(mkdir("folder", 0700));
	for (int number = 0; number < 3; number++)
		SHOW(rmdir("folder"));
	SHOW(rename("missing", "other"));
	SHOW(unlink("missing"));
	for (int number = 0; number < 3; number++)
		SHOW(socket(AF_UNIX, SOCK_STREAM, 0) >= 0);
	SHOW(ftruncate(file, 100));
	for (int number = 0; number < 5; number++)
		SHOW(chdir("."));
	fflush(stdout);
	if (fork() == 0) {
		for (int number = 0; number < 4; number++)
			SHOW(fsync(file));
		fflush(stdout);
		_exit(0);
	}
	int status;
	wait(&status);
	SHOW(status);
	return 0;
}
