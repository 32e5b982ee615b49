/*
 * A manager as containers have it: statically linked, it starts the program that its arguments
 * name, with the environment that it was started with, and ends as that program does.
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
