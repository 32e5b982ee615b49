/*
 * A statically linked manager, as containers use one as their first process. It starts the program
 * that its arguments name, with its own environment, and ends with that program's exit status.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int count, char **arguments)
{
	if (count < 2)
		return 2;
	pid_t child = fork();
	if (child == 0) {
		execv(arguments[1], arguments + 1);
		perror(arguments[1]);
		_exit(127);
	}
	int status;
	if (child < 0 || waitpid(child, &status, 0) != child)
		return 1;
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}
