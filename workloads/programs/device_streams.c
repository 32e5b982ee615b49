/*
 * Standard streams on a device, linked with musl, which reads and writes them by inlined system
 * calls. PATH is a device. Standard input and output may be devices, too.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int main(int count, char **arguments)
{
	static char wrote[10000], read_back[10000];
	(void)count;

	for (size_t at = 0; at < sizeof wrote; at++)
		wrote[at] = (char)(at * 7 + at / 512);
	FILE *file = fopen(arguments[1], "r+");
	if (file == NULL || fwrite(wrote, 1, sizeof wrote, file) != sizeof wrote || fflush(file) != 0)
		return 1;
	rewind(file);
	if (fread(read_back, 1, sizeof wrote, file) != sizeof wrote || memcmp(wrote, read_back, sizeof wrote) != 0)
		return 2;
	fclose(file);
	if (lseek(0, 0, SEEK_END) == 1 << 20) {
		rewind(stdin);
		memset(read_back, 0, sizeof read_back);
		if (fread(read_back, 1, sizeof wrote, stdin) != sizeof wrote)
			return 3;
		if (memcmp(wrote, read_back, sizeof wrote) != 0)
			return 4;
	}
	puts("all held");
	return fflush(stdout) != 0 ? 5 : 0;
}
