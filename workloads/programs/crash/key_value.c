/* Stores records in LevelDB, or in RocksDB if ROCKSDB is defined, for `usring crash`:
 *
 * - `key_value create` makes the database.
 * - `key_value write sync` stores 12 records, and prints the number of each.
 * - `key_value write nosync` stores them without a sync.
 * - `key_value check` fails unless all records up to the last printed number are there.
 *
 * The database is in $USRING_CRASH_STATE/db, and the output in the file $USRING_CRASH_OUTPUT. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef ROCKSDB
#include <rocksdb/c.h>
#define DB(name) rocksdb_##name
#else
#include <leveldb/c.h>
#define DB(name) leveldb_##name
#endif

#define RECORDS 12
/* Size of the memtable, the table in memory. It is small, so that some records move to a table on
 * disk. */
#define MEMORY (64 << 10)

static char value[9000];

static void fill(int number)
{
	memset(value, 'a' + number % 26, sizeof(value));
}

static void stop_on(const char *doing, const char *error)
{
	if (error) {
		printf("%s: %s\n", doing, error);
		exit(1);
	}
}

static DB(t) *open_database(void)
{
	char path[4096];
	char *error = NULL;
	DB(options_t) *options = DB(options_create)();

	snprintf(path, sizeof(path), "%s/db", getenv("USRING_CRASH_STATE"));
	DB(options_set_create_if_missing)(options, 1);
	DB(options_set_paranoid_checks)(options, 1);
	DB(options_set_write_buffer_size)(options, MEMORY);
	DB(t) *database = DB(open)(options, path, &error);
	stop_on("open", error);
	return database;
}

static void write_records(DB(t) *database, int sync)
{
	DB(writeoptions_t) *options = DB(writeoptions_create)();

	DB(writeoptions_set_sync)(options, sync);
	for (int number = 1; number <= RECORDS; number++) {
		char key[16];
		char *error = NULL;
		size_t length = snprintf(key, sizeof(key), "%d", number);

		fill(number);
		DB(put)(database, options, key, length, value, sizeof(value), &error);
		stop_on("put", error);
		printf("%d\n", number);
		fflush(stdout);
	}
}

static int last_printed(void)
{
	FILE *output = fopen(getenv("USRING_CRASH_OUTPUT"), "r");
	int last = 0;

	while (output && fscanf(output, "%d", &last) == 1)
		;
	return last;
}

static int check_records(DB(t) *database)
{
	DB(readoptions_t) *options = DB(readoptions_create)();
	int last = last_printed();

	DB(readoptions_set_verify_checksums)(options, 1);
	for (int number = 1; number <= last; number++) {
		char key[16];
		char *error = NULL;
		size_t length = snprintf(key, sizeof(key), "%d", number);
		size_t size = 0;
		char *found = DB(get)(database, options, key, length, &size, &error);

		stop_on("get", error);
		fill(number);
		if (!found || size != sizeof(value) || memcmp(found, value, size) != 0) {
			printf("record %d is missing\n", number);
			return 1;
		}
		DB(free)(found);
	}
	return 0;
}

int main(int count, char **arguments)
{
	const char *command = count > 1 ? arguments[1] : "";
	DB(t) *database = open_database();
	int status = 0;

	if (strcmp(command, "write") == 0)
		write_records(database, count > 2 && strcmp(arguments[2], "sync") == 0);
	else if (strcmp(command, "check") == 0)
		status = check_records(database);
	DB(close)(database);
	return status;
}
