/* test_memory.c - the memory budget of whole nodes: where its limit comes from, and what is
 * counted.
 *
 *   usage   test_memory MODEL
 *
 * Goal: a node whose placement says no memory has a limit, its share of what is free, from which a
 * refusal follows; what a node takes is what it has counted, with all that is not the model's.
 * Method: clusters of the bundled model, told how much is free. */
#include "tests/actors/whole_cluster.h"

#include "transport/transport.h"

#define MIB (1ull << 20)

static const char *model_path;

static void parse_nodes(tr_placement *out, const char *nodes)
{
    char yaml[1024];
    tr_error err = {0};

    snprintf(yaml, sizeof(yaml),
             "model: %s\ntransport: loop\nnodes: [%s]\nlimits: {context: 256, cache_tokens: 256}\n",
             model_path, nodes);
    if (tr_placement_parse(out, "test.yaml", yaml, strlen(yaml), &err) != TR_OK)
        fail_msg("%s", err.text);
}

/* Opens the first node of a placement. */
static tr_cluster *open_first(const tr_placement *placement, const tr_cluster_options *options)
{
    tr_cluster *node = NULL;
    tr_error err = {0};

    if (tr_cluster_open(&node, placement, 0, options, &err) != TR_OK)
        fail_msg("%s", err.text);
    return node;
}

static uint64_t row_bytes(const tr_budget *budget, const char *part)
{
    for (uint32_t i = 0; i < budget->rows_count; i++)
        if (strncmp(budget->rows[i].part, part, strlen(part)) == 0)
            return budget->rows[i].bytes;
    return 0;
}

static void a_node_of_which_nothing_is_said_gets_its_share_of_what_is_free(void **state)
{
    (void)state;
    tr_placement p;
    tr_budget budget;

    parse_nodes(&p, "{name: a}, {name: b}, {name: c, memory: 100 MiB}");
    tr_cluster *node = open_first(&p, &(tr_cluster_options){.free_bytes = 1000 * MIB});
    tr_cluster_memory(node, &budget);
    assert_int_equal(budget.bytes_max, (900 - 100) * MIB / 2);
    assert_int_equal(tr_cluster_budget(node)->bytes_max, budget.bytes_max);
    assert_non_null(strstr(tr_cluster_budget(node)->limit_why, "shared by 2 nodes"));
    tr_cluster_close(node);
    tr_placement_free(&p);
}

static void what_the_file_says_is_the_limit_whatever_is_free(void **state)
{
    (void)state;
    tr_placement p;

    parse_nodes(&p, "{name: a, memory: 300 MiB}");
    tr_cluster *node = open_first(&p, &(tr_cluster_options){.free_bytes = 1});
    assert_int_equal(tr_cluster_budget(node)->bytes_max, 300 * MIB);
    assert_string_equal(tr_cluster_budget(node)->limit_why, "");
    tr_cluster_close(node);
    tr_placement_free(&p);
}

static void a_node_that_is_told_nothing_looks_for_itself(void **state)
{
    (void)state;
    tr_placement p;

    tr_placement_local(&p, model_path, 1); /* as run, logits and perplexity have it */
    tr_cluster *node = open_first(&p, NULL);
    assert_true(tr_cluster_budget(node)->bytes_max > 0);
    assert_string_equal(tr_cluster_budget(node)->limit_why, "90 % of what was free");
    tr_cluster_close(node);
    tr_placement_free(&p);
}

static void what_does_not_fit_in_what_is_free_is_refused(void **state)
{
    (void)state;
    tr_placement p;
    tr_cluster *node = NULL;
    tr_error err = {0};

    parse_nodes(&p, "{name: a}");
    node = open_first(&p, &(tr_cluster_options){.free_bytes = 1000 * MIB});
    uint64_t needed = tr_budget_total(tr_cluster_budget(node));
    tr_cluster_close(node);

    /* 90 % of this are what it needs, less a little. */
    tr_cluster_options scarce = {.free_bytes = needed / 9 * 10 - 100};
    CHECK_STATUS(tr_cluster_open(&node, &p, 0, &scarce, &err), TR_E_NOMEM);
    CHECK_ERR_NAMES(err, "node a needs");
    tr_placement_free(&p);
}

static void all_that_a_node_takes_is_counted(void **state)
{
    (void)state;
    tr_placement p;
    tr_budget budget;
    tr_cluster_stat stat;

    parse_nodes(&p, "{name: a, memory: 1 GiB}, {name: b, memory: 1 GiB}");
    tr_cluster *node = open_first(&p, &(tr_cluster_options){.front_end_bytes = 7 * MIB});
    tr_cluster_memory(node, &budget);
    tr_cluster_stats(node, &stat);
    assert_int_equal(stat.memory_bytes, tr_budget_total(&budget));
    assert_int_equal(row_bytes(&budget, "front end"), 7 * MIB);
    assert_int_equal(row_bytes(&budget, "transport"), tr_transport_find("loop")->bytes(2));
    assert_true(row_bytes(&budget, "runtime") > tr_runtime_bytes(1, 1));
    assert_true(row_bytes(&budget, "changes of placement") > 0);
    tr_cluster_close(node);

    /* Without them the limit is a byte too low. */
    p.nodes[0].memory_bytes = tr_budget_total(&budget) - 1;
    tr_error err = {0};
    CHECK_STATUS(
        tr_cluster_open(&node, &p, 0, &(tr_cluster_options){.front_end_bytes = 7 * MIB}, &err),
        TR_E_NOMEM);
    tr_placement_free(&p);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_node_of_which_nothing_is_said_gets_its_share_of_what_is_free),
        cmocka_unit_test(what_the_file_says_is_the_limit_whatever_is_free),
        cmocka_unit_test(a_node_that_is_told_nothing_looks_for_itself),
        cmocka_unit_test(what_does_not_fit_in_what_is_free_is_refused),
        cmocka_unit_test(all_that_a_node_takes_is_counted),
    };
    if (argc != 2) {
        fprintf(stderr, "usage: test_memory MODEL\n");
        return 2;
    }
    model_path = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
