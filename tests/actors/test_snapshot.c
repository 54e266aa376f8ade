/* test_snapshot.c - files of sequence states: what is written is read back, and each thing that can
 * be wrong with one is named. tests/fuzz/fuzz_snapshot.c has the rest. */
#include "actors/snapshot.h"
#include "kernels/kernels.h"
#include "tests/check.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define STATE_SIZE (32 + 2 * 48 + 16) /* of 70 positions */

static char folder[] = "/tmp/troupe-snapshot-XXXXXX";
static char path[64];

static const tr_snapshot_head head = {.magic = {'T', 'R', 'S', 'T', 'A', 'T', 'E', 'S'},
                                      .version = TR_SNAPSHOT_VERSION,
                                      .model = 0xabc,
                                      .fingerprint = 0xdef,
                                      .layout = 5,
                                      .state_size = 32,
                                      .page_size = 48,
                                      .ngram_size = 16,
                                      .vocab_size = 1000};

static tr_snapshot_slot sequence_slot(void)
{
    return (tr_snapshot_slot){.kind = TR_SNAPSHOT_SEQUENCE,
                              .tokens_count = 71,
                              .prompt_count = 66,
                              .computed_count = 70,
                              .tokens_max = 20,
                              .stop_tokens_count = 1,
                              .stop_tokens = {9},
                              .sampling = {.temperature = 0.5f, .seed = 3},
                              .used = 8};
}

static void fill(uint8_t *state, int32_t *tokens)
{
    for (int i = 0; i < STATE_SIZE; i++)
        state[i] = (uint8_t)(i * 7);
    for (int i = 0; i < 71; i++)
        tokens[i] = i * 13;
}

/* One sequence; returns the file's size. */
static uint64_t write_file(void)
{
    uint8_t state[STATE_SIZE];
    int32_t tokens[71];
    tr_snapshot_writer *w = NULL;
    tr_snapshot_slot slot = sequence_slot();
    tr_error err = {0};
    uint64_t size = 0;

    fill(state, tokens);
    CHECK_STATUS(tr_snapshot_begin(&w, path, &head, &err), TR_OK);
    CHECK_STATUS(tr_snapshot_add_slot(w, &slot, tokens, &err), TR_OK);
    CHECK_STATUS(tr_snapshot_add_state(w, state, 32, &err), TR_OK); /* in pieces */
    CHECK_STATUS(tr_snapshot_add_state(w, state + 32, STATE_SIZE - 32, &err), TR_OK);
    CHECK_STATUS(tr_snapshot_end(w, &size, &err), TR_OK);
    assert_int_equal(size, 64 + 120 + 71 * 4 + STATE_SIZE + 120 + 8);
    return size;
}

static void what_is_written_is_read_back(void **state)
{
    uint8_t written[STATE_SIZE], read[STATE_SIZE];
    int32_t tokens[71], back[71];
    tr_snapshot *s = calloc(1, sizeof(*s));
    tr_snapshot_slot slot = sequence_slot();
    tr_error err = {0};
    (void)state;

    uint64_t size = write_file();
    fill(written, tokens);
    CHECK_STATUS(tr_snapshot_open(s, path, &head, NULL, &err), TR_OK);
    assert_int_equal(s->size, size);
    assert_int_equal(s->entries_count, 1);
    assert_memory_equal(&s->entries[0].slot, &slot, sizeof(slot));
    CHECK_STATUS(tr_snapshot_read(s, s->entries[0].tokens_at, back, sizeof(back), &err), TR_OK);
    assert_memory_equal(back, tokens, sizeof(back));
    CHECK_STATUS(tr_snapshot_read(s, s->entries[0].state_at, read, sizeof(read), &err), TR_OK);
    assert_memory_equal(read, written, sizeof(read));
    CHECK_STATUS(tr_snapshot_read(s, size - 4, read, 8, &err), TR_E_INVALID);
    CHECK_ERR_NAMES(err, "it ends at byte");
    tr_snapshot_close(s);
    free(s);
}

static void a_file_is_for_its_owner_alone(void **state)
{
    struct stat st;
    char part_path[sizeof(path) + 8];
    (void)state;
    snprintf(part_path, sizeof(part_path), "%s.part", path);
    int fd = open(part_path, O_WRONLY | O_CREAT, 0644); /* of somebody who died while he wrote */
    assert_true(fd >= 0);
    close(fd);
    mode_t before = umask(0);
    (void)write_file();
    umask(before);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
}

static void a_file_without_its_end_has_no_name(void **state)
{
    char part[80];
    tr_snapshot_writer *w = NULL;
    tr_error err = {0};
    (void)state;

    (void)unlink(path);
    CHECK_STATUS(tr_snapshot_begin(&w, path, &head, &err), TR_OK);
    snprintf(part, sizeof(part), "%s.part", path);
    assert_int_equal(access(part, F_OK), 0);
    assert_int_not_equal(access(path, F_OK), 0);
    tr_snapshot_abandon(w);
    assert_int_not_equal(access(part, F_OK), 0);
    tr_snapshot_abandon(NULL);
}

static void another_cluster_refuses_it_with_a_sentence(void **state)
{
    tr_snapshot *s = calloc(1, sizeof(*s));
    tr_snapshot_head other[5] = {head, head, head, head, head};
    static const char *const names[] = {"version: found 1, expected 2: it was written by another",
                                        "model: found abc, expected 1",
                                        "fingerprint: found def, expected 1",
                                        "activations: found 0, expected 1", "laid out differently"};
    tr_error err = {0};
    (void)state;

    other[0].version = 2;
    other[1].model = 1;
    other[2].fingerprint = 1;
    other[3].activations = 1;
    other[4].page_size = 47;
    write_file();
    for (int i = 0; i < 5; i++) {
        CHECK_STATUS(tr_snapshot_open(s, path, &other[i], NULL, &err), TR_E_INVALID);
        CHECK_ERR_NAMES(err, path);
        CHECK_ERR_NAMES(err, names[i]);
    }
    free(s);
}

static void damage(uint64_t at, uint8_t byte)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, &byte, 1, (off_t)at), 1);
    close(fd);
}

static void damage_is_noticed(void **state)
{
    static const struct {
        uint64_t at;
        uint8_t byte;
        const char *named;
    } cases[] = {
        {0, 'X', "not a file of sequence states"},
        {64, 7, "slot 0: the kind is not known"},
        {64 + 7, 0xff, "slot 0: too many tokens"},
        {64 + 8, 0, "slot 0: the prompt is empty or longer"},
        {64 + 12, 71, "slot 0: a sequence that has ended already"},
        {64 + 12, 65, "slot 0: the computed positions end where none do"},
        {64 + 16, 5, "slot 0: a sequence that has ended already"},
        {64 + 20, 17, "slot 0: too many stop tokens"},
        {64 + 119, 0xff, "slot 0: used more often than anything can be"},
        {64 + 120 + 3, 0x80, "slot 0: token -2147483648, expected 0 to 999"},
        {64 + 120 + 71 * 4 + 10, 1, "hash: "},
    };
    tr_snapshot *s = calloc(1, sizeof(*s));
    (void)state;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        tr_error err = {0};
        write_file();
        damage(cases[i].at, cases[i].byte);
        CHECK_STATUS(tr_snapshot_open(s, path, &head, NULL, &err), TR_E_INVALID);
        CHECK_ERR_NAMES(err, cases[i].named);
    }
    uint64_t size = write_file();
    for (uint64_t cut = 0; cut < size; cut += 5) {
        tr_error err = {0};
        assert_int_equal(truncate(path, (off_t)(size - 1 - cut)), 0);
        CHECK_STATUS(tr_snapshot_open(s, path, &head, NULL, &err), TR_E_INVALID);
        CHECK_ERR_NAMES(err, path);
    }
    tr_error err = {0};
    CHECK_STATUS(tr_snapshot_open(s, folder, &head, NULL, &err), TR_E_INVALID);
    CHECK_ERR_NAMES(err, "not a regular file");
    free(s);
}

static void tokens_that_change_after_the_check_are_noticed(void **state)
{
    tr_snapshot *s = calloc(1, sizeof(*s));
    int32_t tokens[71];
    tr_error err = {0};
    (void)state;

    write_file();
    CHECK_STATUS(tr_snapshot_open(s, path, &head, NULL, &err), TR_OK);
    const tr_snapshot_entry *entry = &s->entries[0];
    CHECK_STATUS(tr_snapshot_read_tokens(s, entry, 1000, 0, 71, tokens, &err), TR_OK);
    assert_int_equal(tokens[70], 70 * 13);
    CHECK_STATUS(tr_snapshot_read_tokens(s, entry, 1000, 69, 2, tokens, &err), TR_OK);
    assert_int_equal(tokens[1], 70 * 13);
    damage(entry->tokens_at + 70 * sizeof(*tokens) + 3, 0x7f);
    CHECK_STATUS(tr_snapshot_read_tokens(s, entry, 1000, 0, 70, tokens, &err), TR_OK);
    CHECK_STATUS(tr_snapshot_read_tokens(s, entry, 1000, 70, 1, tokens, &err), TR_E_INVALID);
    CHECK_ERR_NAMES(err, "slot 0: token 2130707342, expected 0 to 999");
    tr_snapshot_close(s);
    free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_is_read_back),
        cmocka_unit_test(a_file_is_for_its_owner_alone),
        cmocka_unit_test(a_file_without_its_end_has_no_name),
        cmocka_unit_test(another_cluster_refuses_it_with_a_sentence),
        cmocka_unit_test(damage_is_noticed),
        cmocka_unit_test(tokens_that_change_after_the_check_are_noticed),
    };
    if (mkdtemp(folder) == NULL)
        return 2;
    snprintf(path, sizeof(path), "%s/states", folder);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    (void)unlink(path);
    (void)rmdir(folder);
    return failed;
}
