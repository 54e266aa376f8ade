/* test_remote.c - a model whose bytes come from elsewhere is the same model, and holds in memory no
 * more than it may.
 *
 * Method: the bundled model is listed and read in this process, and opened through the folder that
 * tr_remote_open makes. Lists that cannot be are made by hand. */
#include "core/model/files.h"
#include "core/model/map.h"
#include "core/model/model.h"
#include "core/model/remote.h"
#include "tests/check.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static const char model_path[] = MODELS_DIR "/tiny-solar-nvfp4";
#define KEEP (64u << 20)

static char scratch[] = "/tmp/troupe-test-remote-XXXXXX";

/* Who has the model. */
typedef struct {
    tr_model *model;
    tr_file_list list;
    uint32_t readings;
    uint64_t bytes;
    bool gone; /* it does not answer */
} owner;

static tr_status owner_read(void *ctx, const tr_file_range *ranges, uint8_t *const *to,
                            uint32_t count, tr_error *err)
{
    owner *o = ctx;
    if (o->gone)
        return tr_fail(err, TR_E_PEER, "nobody is there");
    assert_in_range(count, 1, TR_FILE_RANGES_MAX);
    assert_true(tr_file_ranges_size(ranges, count) <= TR_FILE_BYTES_MAX);
    o->readings++;
    for (uint32_t i = 0; i < count; i++) {
        tr_status status = tr_file_list_read(&o->list, o->model, &ranges[i], 1, to[i], err);
        if (status != TR_OK)
            return status;
        o->bytes += ranges[i].size;
    }
    return TR_OK;
}

static void owner_open(owner *o, tr_file_list *copy)
{
    tr_error err = {0};
    *o = (owner){0};
    CHECK_STATUS(tr_model_open(&o->model, model_path, &err), TR_OK);
    CHECK_STATUS(tr_file_list_make(&o->list, o->model, &err), TR_OK);
    *copy = o->list;
    CHECK_STATUS(tr_file_list_take(copy, o->list.count, &err), TR_OK);
    memcpy(copy->files, o->list.files, o->list.count * sizeof(*copy->files));
}

static void owner_close(owner *o)
{
    tr_file_list_free(&o->list);
    tr_model_close(o->model);
}

static uint32_t folders_left(void)
{
    uint32_t count = 0;
    DIR *dir = opendir(scratch);
    assert_non_null(dir);
    for (struct dirent *e; (e = readdir(dir)) != NULL;)
        count += e->d_name[0] != '.';
    closedir(dir);
    return count;
}

static void check_same(const tr_weight *a, const tr_weight *b)
{
    size_t row =
        (size_t)(a->cols / tr_format_block_elements(a->format)) * tr_format_block_bytes(a->format);
    assert_int_equal(a->format, b->format);
    assert_memory_equal(&a->scale, &b->scale, sizeof(a->scale));
    for (uint32_t r = 0; r < a->rows; r++)
        assert_memory_equal(a->data + r * a->row_size, b->data + r * b->row_size, row);
    for (uint32_t r = 0; a->scales != NULL && a->format == TR_FORMAT_NVFP4 && r < a->rows; r++)
        assert_memory_equal(a->scales + r * a->scales_row_size, b->scales + r * b->scales_row_size,
                            a->cols / 16);
}

static void every_weight_that_is_needed_is_the_owners(void **state)
{
    owner o;
    tr_file_list list;
    tr_remote_model *remote;
    tr_model *model;
    tr_error err = {0};
    uint32_t checked = 0;
    (void)state;

    owner_open(&o, &list);
    CHECK_STATUS(tr_remote_open(&remote, &list, owner_read, &o, KEEP, &err), TR_OK);
    assert_null(list.files); /* taken over */
    tr_remote_hold(remote);
    CHECK_STATUS(tr_model_open(&model, tr_remote_path(remote), &err), TR_OK);
    assert_true(tr_remote_kept(remote) > 0);
    tr_remote_drop(remote);
    assert_int_equal(tr_remote_kept(remote), 0);
    assert_true(tr_model_identity(model) == tr_model_identity(o.model));
    assert_true(tr_remote_received(remote) == o.bytes);
    uint64_t size = 0;
    for (uint32_t i = 0; i < o.list.count; i++)
        size += o.list.files[i].size;
    assert_true(o.bytes < size); /* a model opens by its heads and small tensors */

    const tr_model_spec *spec = tr_model_get_spec(model);
    for (uint32_t l = 0; l < spec->layers_count; l++)
        for (int role = 0; role < TR_W_EMBED; role++) {
            if (!tr_model_has(model, l, (tr_weight_role)role))
                continue;
            tr_weight mine = tr_model_weight(model, l, (tr_weight_role)role, 0);
            tr_weight theirs = tr_model_weight(o.model, l, (tr_weight_role)role, 0);
            CHECK_STATUS(tr_weight_need(&mine, &err), TR_OK);
            check_same(&theirs, &mine);
            checked++;
        }
    assert_true(checked > 20);
    uint32_t readings = o.readings;
    tr_weight again = tr_model_weight(model, spec->layers_count - 1, TR_W_O, 0);
    CHECK_STATUS(tr_weight_need(&again, &err), TR_OK);
    assert_int_equal(o.readings, readings); /* it is there already */
    CHECK_STATUS(tr_model_check_files(model, &err), TR_OK);

    tr_remote_drop(remote);
    CHECK_STATUS(tr_weight_need(&again, &err), TR_OK);
    assert_int_equal(o.readings, readings + 1);
    assert_true(tr_remote_kept(remote) <= tr_remote_keep_max(remote));
    tr_model_close(model);
    tr_remote_close(remote);
    owner_close(&o);
    assert_int_equal(folders_left(), 0);
}

static void no_more_is_kept_than_may_be(void **state)
{
    const uint64_t keep = 65536;
    owner o;
    tr_file_list list;
    tr_remote_model *remote;
    tr_model *model;
    tr_error err = {0};
    uint64_t largest = 0;
    (void)state;

    owner_open(&o, &list);
    CHECK_STATUS(tr_remote_open(&remote, &list, owner_read, &o, keep, &err), TR_OK);
    assert_true(tr_remote_keep_max(remote) == keep);
    tr_remote_hold(remote);
    CHECK_STATUS(tr_model_open(&model, tr_remote_path(remote), &err), TR_OK);
    tr_remote_drop(remote);
    const tr_model_spec *spec = tr_model_get_spec(model);
    for (uint32_t round = 0; round < 2; round++)
        for (uint32_t e = 0; e < spec->layers[1].channel.experts; e++) {
            tr_weight mine = tr_model_weight(model, 1, TR_W_EXPERT_UP, e);
            tr_weight theirs = tr_model_weight(o.model, 1, TR_W_EXPERT_UP, e);
            CHECK_STATUS(tr_weight_need(&mine, &err), TR_OK);
            check_same(&theirs, &mine);
            uint64_t kept = tr_remote_kept(remote);
            largest = kept > largest ? kept : largest;
        }
    assert_true(largest > keep / 2); /* it is made use of */
    assert_true(largest <= keep + 32768);
    tr_model_close(model);
    tr_remote_close(remote);
    owner_close(&o);
    assert_int_equal(folders_left(), 0);
}

static void what_does_not_come_is_asked_for_again(void **state)
{
    owner o;
    tr_file_list list;
    tr_remote_model *remote;
    tr_model *model;
    tr_error err = {0};
    (void)state;

    owner_open(&o, &list);
    CHECK_STATUS(tr_remote_open(&remote, &list, owner_read, &o, KEEP, &err), TR_OK);
    CHECK_STATUS(tr_model_open(&model, tr_remote_path(remote), &err), TR_OK);
    tr_remote_drop(remote);
    tr_weight mine = tr_model_weight(model, 0, TR_W_O, 0);
    tr_weight theirs = tr_model_weight(o.model, 0, TR_W_O, 0);
    o.gone = true;
    CHECK_STATUS(tr_weight_need(&mine, &err), TR_E_PEER);
    CHECK_ERR_NAMES(err, "nobody is there");
    CHECK_STATUS(tr_model_check_weight(model, 0, TR_W_O, 0, &err), TR_E_PEER);
    assert_int_equal(tr_remote_kept(remote), 0);
    o.gone = false;
    CHECK_STATUS(tr_weight_need(&mine, &err), TR_OK);
    check_same(&theirs, &mine);
    tr_model_close(model);
    tr_remote_close(remote);

    /* Nor does a model open that does not come. */
    owner_close(&o);
    owner_open(&o, &list);
    o.gone = true;
    CHECK_STATUS(tr_remote_open(&remote, &list, owner_read, &o, KEEP, &err), TR_E_PEER);
    assert_non_null(list.files); /* still the caller's */
    tr_file_list_free(&list);
    owner_close(&o);
    assert_int_equal(folders_left(), 0);
}

static void lists_that_cannot_be_are_refused(void **state)
{
    owner o;
    tr_file_list list;
    tr_remote_model *remote;
    tr_error err = {0};
    tr_file_entry first;
    (void)state;

    owner_open(&o, &list);
    first = list.files[0];
    static const char *const names[] = {"", "../config.json", "a/b", ".hidden", ".."};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        strcpy(list.files[0].name, names[i]);
        CHECK_STATUS(tr_remote_open(&remote, &list, owner_read, &o, KEEP, &err), TR_E_INVALID);
        CHECK_ERR_NAMES(err, "expected names, each once");
    }
    list.files[0] = list.files[1];
    CHECK_STATUS(tr_remote_open(&remote, &list, owner_read, &o, KEEP, &err), TR_E_INVALID);
    list.files[0] = first;
    list.files[0].head = first.size + 1;
    CHECK_STATUS(tr_remote_open(&remote, &list, owner_read, &o, KEEP, &err), TR_E_INVALID);
    CHECK_ERR_NAMES(err, first.name);
    list.files[0] = first;
    list.files[0].size = UINT64_MAX;
    CHECK_STATUS(tr_remote_open(&remote, &list, owner_read, &o, KEEP, &err), TR_E_INVALID);
    for (uint32_t i = 0; i < 2; i++) /* neither is too long, both are */
        list.files[i].size = list.files[i].head = TR_FILE_HEADS_MAX / 2 + 1;
    CHECK_STATUS(tr_remote_open(&remote, &list, owner_read, &o, KEEP, &err), TR_E_INVALID);
    CHECK_ERR_NAMES(err, list.files[1].name);
    list.files[0] = first;
    list.files[1] = o.list.files[1];
    strcpy(list.name, "/etc");
    CHECK_STATUS(tr_remote_open(&remote, &list, owner_read, &o, KEEP, &err), TR_E_INVALID);
    uint32_t count = list.count;
    strcpy(list.name, o.list.name);
    list.count = 0;
    CHECK_STATUS(tr_remote_open(&remote, &list, owner_read, &o, KEEP, &err), TR_E_INVALID);
    list.count = count;
    list.folder = false; /* then the first file must be the model */
    CHECK_STATUS(tr_remote_open(&remote, &list, owner_read, &o, KEEP, &err), TR_E_INVALID);
    tr_file_list_free(&list);
    owner_close(&o);
    assert_int_equal(folders_left(), 0);
}

static void ranges_beyond_the_files_are_refused(void **state)
{
    owner o;
    tr_file_list list;
    tr_error err = {0};
    uint8_t out[64];
    (void)state;

    owner_open(&o, &list);
    uint64_t size = list.files[0].size;
    const tr_file_range wrong[] = {
        {list.count, 1, 0}, {UINT32_MAX, 1, 0}, {0, 2, size - 1}, {0, 1, size}, {0, 1, UINT64_MAX}};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        CHECK_STATUS(tr_file_list_read(&o.list, o.model, &wrong[i], 1, out, &err), TR_E_INVALID);
    const tr_file_range good[] = {{0, 8, 0}, {0, 1, size - 1}, {0, 0, size}};
    CHECK_STATUS(tr_file_list_read(&o.list, o.model, good, 3, out, &err), TR_OK);
    const tr_file_range large[] = {{0, TR_FILE_BYTES_MAX, 0}, {0, 1, 0}};
    assert_true(tr_file_ranges_size(large, 1) == TR_FILE_BYTES_MAX);
    assert_true(tr_file_ranges_size(large, 2) == UINT64_MAX);
    tr_file_list_free(&list);
    owner_close(&o);
}

/* Folders that a killed process left, and one of a process that lives. */
static void folders_of_dead_processes_are_swept_away(void **state)
{
    owner o;
    tr_file_list list;
    tr_remote_model *remote;
    tr_error err = {0};
    char path[256];
    (void)state;

    snprintf(path, sizeof(path), "%s/troupe-stream-dead", scratch);
    assert_int_equal(mkdir(path, 0700), 0);
    strcat(path, "/lock");
    close(open(path, O_RDWR | O_CREAT, 0600));
    snprintf(path, sizeof(path), "%s/troupe-stream-live", scratch);
    assert_int_equal(mkdir(path, 0700), 0);
    strcat(path, "/lock");
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    assert_int_equal(flock(fd, LOCK_EX), 0);
    owner_open(&o, &list);
    CHECK_STATUS(tr_remote_open(&remote, &list, owner_read, &o, KEEP, &err), TR_OK);
    assert_int_equal(folders_left(), 2);
    assert_int_equal(access(path, F_OK), 0);
    tr_remote_close(remote);
    close(fd);
    owner_close(&o);
    assert_int_equal(unlink(path), 0);
    *strrchr(path, '/') = '\0';
    assert_int_equal(rmdir(path), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_weight_that_is_needed_is_the_owners),
        cmocka_unit_test(no_more_is_kept_than_may_be),
        cmocka_unit_test(what_does_not_come_is_asked_for_again),
        cmocka_unit_test(lists_that_cannot_be_are_refused),
        cmocka_unit_test(ranges_beyond_the_files_are_refused),
        cmocka_unit_test(folders_of_dead_processes_are_swept_away),
    };
    if (mkdtemp(scratch) == NULL || setenv("TMPDIR", scratch, 1) != 0)
        return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    (void)rmdir(scratch);
    return failed;
}
