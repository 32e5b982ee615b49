/*
 * A program with a large thread-local block and with memory that is swapped. The loader maps the
 * block before usring's library can answer calls.
 */
#include <stdio.h>
#include <stdlib.h>

enum { OWN = 900 << 10, BLOCK = 2 << 20 };

static _Thread_local char own[OWN];

int main(void)
{
	char *block = malloc(BLOCK);
	long sum = 0;

	if (!block)
		return 1;
	for (int at = 0; at < OWN; at += 512)
		own[at] = 1;
	for (int at = 0; at < BLOCK; at += 4096)
		block[at] = 1;
	for (int at = 0; at < OWN; at += 512)
		sum += own[at];
	for (int at = 0; at < BLOCK; at += 4096)
		sum += block[at];
	printf("%ld\n", sum);
	return 0;
}
