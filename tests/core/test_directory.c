/* test_directory.c - finding actors by id: full, unknown ids, ids that lie close together. */
#include "tests/check.h"

#include "core/directory.h"

#include <stdlib.h>

static void every_one_of_the_most_actors_is_found_and_no_other(void **state)
{
    (void)state;
    tr_directory *directory = calloc(1, sizeof(*directory));
    assert_non_null(directory);
    tr_directory_entry *entry;
    for (uint32_t i = 0; i < TR_ACTORS_MAX; i++) {
        /* As placements make them: few kinds, consecutive numbers. */
        tr_actor_id id = tr_actor_id_make((tr_actor_kind)(1 + i % 8), i / 8);
        CHECK_STATUS(tr_directory_add(directory, id, "x", i % TR_NODES_MAX, &entry, NULL), TR_OK);
        assert_int_equal(entry->id, id);
    }
    for (uint32_t i = 0; i < 2 * TR_ACTORS_MAX; i++) {
        tr_actor_id id = tr_actor_id_make((tr_actor_kind)(1 + i % 8), i / 8);
        const tr_directory_entry *found = tr_directory_find(directory, id);
        if (i >= TR_ACTORS_MAX) {
            assert_null(found);
            continue;
        }
        assert_non_null(found);
        assert_int_equal(found->id, id);
        assert_int_equal(found->node_index, i % TR_NODES_MAX);
    }
    assert_null(tr_directory_find(directory, 0));
    assert_null(tr_directory_find(directory, UINT64_MAX));

    tr_error err = {0};
    CHECK_STATUS(tr_directory_add(directory, UINT64_MAX, "late", 0, &entry, &err), TR_E_NOMEM);
    CHECK_ERR_NAMES(err, "\"late\"");
    free(directory);
}

static void an_empty_directory_knows_nobody(void **state)
{
    (void)state;
    tr_directory *directory = calloc(1, sizeof(*directory));
    assert_non_null(directory);
    assert_null(tr_directory_find(directory, tr_actor_id_make(TR_ACTOR_ROUTER, 0)));
    free(directory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_one_of_the_most_actors_is_found_and_no_other),
        cmocka_unit_test(an_empty_directory_knows_nobody),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
