/* corpus_main.c - runs a fuzz target without libFuzzer: over each file of a folder, and over
 * MUTATIONS_COUNT damaged forms of it (cut, one byte changed), the same in every run. So an
 * ordinary build, a sanitizer build and the emulator see the inputs that once broke something. */
#include <dirent.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILE_SIZE_MAX (1u << 20)
#define MUTATIONS_COUNT 300

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The target gets a block of exactly size bytes, so that a sanitizer sees a read beyond it. */
static void run_input(const uint8_t *data, size_t size)
{
    uint8_t *copy = malloc(size > 0 ? size : 1);
    if (copy == NULL)
        abort();
    memcpy(copy, data, size);
    (void)LLVMFuzzerTestOneInput(copy, size); /* libFuzzer ignores it as well */
    free(copy);
}

static uint64_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

static void run_damaged(uint8_t *data, size_t size)
{
    uint64_t random = 1;

    for (unsigned i = 0; i < MUTATIONS_COUNT && size > 0; i++) {
        size_t place = next_random(&random) % size;
        if (i % 2 == 0) {
            run_input(data, place);
            continue;
        }
        uint8_t kept = data[place];
        data[place] = (uint8_t)next_random(&random);
        run_input(data, size);
        data[place] = kept;
    }
}

static int run_file(const char *path, uint8_t *data)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
        return 1;
    }
    size_t size = fread(data, 1, FILE_SIZE_MAX, file);
    fclose(file);

    run_input(data, size);
    run_damaged(data, size);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: %s CORPUS_FOLDER\n", argv[0]);
        return 2;
    }
    DIR *folder = opendir(argv[1]);
    if (folder == NULL) {
        fprintf(stderr, "%s: %s\n", argv[1], strerror(errno));
        return 1;
    }
    uint8_t *data = malloc(FILE_SIZE_MAX);
    int failures = data == NULL;
    unsigned files_count = 0;
    const struct dirent *entry;
    while (failures == 0 && (entry = readdir(folder)) != NULL) {
        char path[4096];
        if (entry->d_name[0] == '.')
            continue;
        snprintf(path, sizeof(path), "%s/%s", argv[1], entry->d_name);
        failures += run_file(path, data);
        files_count++;
    }
    free(data);
    closedir(folder);
    if (files_count == 0) {
        fprintf(stderr, "%s: no input in this folder\n", argv[1]);
        return 1;
    }
    return failures == 0 ? 0 : 1;
}
