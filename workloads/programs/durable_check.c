/* The check for `durable`: compares the file "value" with the last number that was printed.
 * usage: durable_check KIND */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BODY = 1024, LINE = 16 };

static int last_promise(void)
{
	FILE *output = fopen(getenv("USRING_CRASH_OUTPUT"), "r");
	int number = 0;
	while (output && fscanf(output, "%d", &number) == 1)
		continue;
	return number;
}

static int check_log(int file, int number)
{
	char body[BODY];
	for (int record = 1; record <= number; record++) {
		if (pread(file, body, BODY, LINE + (off_t)(record - 1) * BODY) != BODY)
			return printf("record %d is missing\n", record), 1;
		for (int at = 0; at < BODY; at++)
			if (body[at] != '0' + record)
				return printf("record %d is damaged\n", record), 1;
	}
	return 0;
}

int main(int count, char **arguments)
{
	int promised = last_promise();
	int file = open("value", O_RDONLY);
	char line[LINE + 1] = { 0 };
	if (file < 0)
		return printf("there is no value\n"), 1;
	if (read(file, line, LINE) < 0)
		return 1;
	int found = atoi(line);
	if (line[0] < '0' || line[0] > '9')
		return printf("the value is damaged\n"), 1;
	if (found < promised)
		return printf("the value is %d, but %d was promised\n", found, promised), 1;
	return count > 1 && strcmp(arguments[1], "log") == 0 ? check_log(file, found) : 0;
}
