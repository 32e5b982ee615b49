/*
 * Executes a program while the effective user differs from the real one. The loader then ignores
 * LD_PRELOAD, so usring could not serve the program and must refuse the call.
 */
#define _GNU_SOURCE
#include "check.h"
#include <sys/wait.h>

static void executes(void)
{
	pid_t child = fork();
	if (child == 0) {
		EQUAL(setresuid(65534, -1, -1), 0);
		execl("/bin/sh", "sh", "-c", "trap : TERM; exit 1", NULL);
		_exit(errno == ELIBBAD ? 0 : 1);
	}
	int status;
	EQUAL(waitpid(child, &status, 0), child);
	EQUAL(status, 0);
}

static const struct check checks[] = { { "a program is executed", executes } };

int main(int count, char **arguments)
{
	if (geteuid() != 0) {
		puts("needs a superuser");
		return 0;
	}
	return RUN(checks, count, arguments);
}
