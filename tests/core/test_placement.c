/* test_placement.c - the placement file: what it means, and what is wrong with it.
 *
 * Method: files are texts in tables. Whatever is read is printed and read again, and must be the
 * same. The plan has its own test. */
#include "tests/check.h"

#include "core/placement.h"

#include <stdlib.h>
#include <unistd.h>

#define NAME         "conf/two.yaml"
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static tr_status parse(tr_placement *out, const char *text, tr_error *err)
{
    return tr_placement_parse(out, NAME, text, strlen(text), err);
}

static const char whole_file[] =
    "# everything that can be said\n"
    "model: ../models/tiny\n"
    "transport: nng\n"
    "activations: nvfp4\n"
    "batcher: spark2\n"
    "sampler: spark2\n"
    "ngram: spark2\n"
    "nodes:\n"
    "  - name: spark1\n"
    "    host: 10.0.0.1\n"
    "    control: ipc:///tmp/one.sock\n"
    "    memory: 1.5 GiB\n"
    "    threads: 3\n"
    "    workers: 2\n"
    "    transport: {tls: \"posix,cma\", devices: lo}\n"
    "  - {name: spark2, host: fe80::1, checkpoint: stream}\n"
    "api: {host: 0.0.0.0, port: 9000}\n"
    "routers: [{node: spark1, layers: 0-3}, {node: spark2, layers: all}]\n"
    "attention: [{node: spark1, layers: 2, terms: 0-1}]\n"
    "experts: [{node: spark2, layers: 4-last, experts: 7}]\n"
    "replicas: [{node: spark1, experts: 7}]\n"
    "slices: [{node: spark1}]\n"
    "vocabulary: [{node: spark2, rows: 0-2047}]\n"
    "limits:\n"
    "  sequences: 4\n"
    "  context: 4096\n"
    "  cache_tokens: 8192\n"
    "  step_rows: 128\n"
    "  steps_in_flight: 3\n"
    "  prefix_cache: 5\n"
    "  peer_timeout: 2 s\n"
    "  start_timeout: 5 min\n"
    "  exit_on_peer_loss: false\n";

static void check_rule(const tr_placement_rules *rules, uint32_t i, tr_placement_rule expected)
{
    assert_true(i < rules->count);
    assert_memory_equal(&rules->rules[i], &expected, sizeof(expected));
}

static void check_whole(const tr_placement *p)
{
    assert_string_equal(p->transport, "nng");
    assert_true(p->activations_nvfp4);
    assert_int_equal(p->nodes_count, 2);
    assert_string_equal(p->nodes[0].name, "spark1");
    assert_string_equal(p->nodes[0].host, "10.0.0.1");
    assert_string_equal(p->nodes[0].control, "ipc:///tmp/one.sock");
    assert_true(p->nodes[0].memory_bytes == 3ull << 29);
    assert_int_equal(p->nodes[0].threads, 3);
    assert_int_equal(p->nodes[0].workers, 2);
    assert_false(p->nodes[0].streams);
    assert_true(p->nodes[1].streams);
    assert_string_equal(p->nodes[0].transport_options, "tls=posix,cma,devices=lo");
    assert_string_equal(p->nodes[1].control, "tcp://[fe80::1]:7702");
    assert_int_equal(p->nodes[1].threads, 1);
    assert_int_equal(p->batcher_node, 1);
    assert_int_equal(p->sampler_node, 1);
    assert_int_equal(p->ngram_node, 1);
    assert_true(p->ngram_named);
    assert_string_equal(p->api_host, "0.0.0.0");
    assert_int_equal(p->api_port, 9000);
    check_rule(&p->routers, 0, (tr_placement_rule){0, 0, 3, 0, UINT32_MAX});
    check_rule(&p->routers, 1, (tr_placement_rule){1, 0, UINT32_MAX, 0, UINT32_MAX});
    check_rule(&p->attention, 0, (tr_placement_rule){0, 2, 2, 0, 1});
    check_rule(&p->experts, 0, (tr_placement_rule){1, 4, UINT32_MAX, 7, 7});
    check_rule(&p->replicas, 0, (tr_placement_rule){0, 0, UINT32_MAX, 7, 7});
    check_rule(&p->slices, 0, (tr_placement_rule){0, 0, UINT32_MAX, 0, UINT32_MAX});
    check_rule(&p->vocabulary, 0, (tr_placement_rule){1, 0, UINT32_MAX, 0, 2047});
    assert_int_equal(p->limits.sequences, 4);
    assert_int_equal(p->limits.context, 4096);
    assert_int_equal(p->limits.cache_tokens, 8192);
    assert_int_equal(p->limits.step_rows, 128);
    assert_int_equal(p->limits.steps_in_flight, 3);
    assert_int_equal(p->limits.prefix_cache, 5);
    assert_int_equal(p->limits.peer_timeout_ms, 2000);
    assert_int_equal(p->limits.start_timeout_s, 300);
    assert_false(p->limits.exit_on_peer_loss);
}

static void every_key_arrives_where_it_belongs(void **state)
{
    (void)state;
    tr_placement p;
    tr_error err = {0};

    CHECK_STATUS(parse(&p, whole_file, &err), TR_OK);
    check_whole(&p);
    assert_string_equal(p.source, NAME);
    assert_string_equal(p.model, "conf/../models/tiny");
    tr_placement_free(&p);
}

static void what_is_left_out_has_its_default(void **state)
{
    (void)state;
    tr_placement p;
    tr_error err = {0};

    CHECK_STATUS(parse(&p, "model: /m\nnodes:\n- name: a\n- name: b\n", &err), TR_OK);
    assert_string_equal(p.model, "/m");
    assert_string_equal(p.transport, "ucx");
    assert_string_equal(p.nodes[0].host, "127.0.0.1");
    assert_string_equal(p.nodes[0].control, "tcp://127.0.0.1:7701");
    assert_string_equal(p.nodes[1].control, "tcp://127.0.0.1:7702");
    assert_string_equal(p.nodes[1].transport_options, "");
    assert_true(p.nodes[0].memory_bytes == 0);
    assert_int_equal(p.nodes[0].threads, 1);
    assert_int_equal(p.nodes[0].workers, 1);
    assert_int_equal(p.batcher_node, 0);
    assert_int_equal(p.sampler_node, 0);
    assert_int_equal(p.ngram_node, 0);
    assert_false(p.ngram_named);
    assert_string_equal(p.api_host, "127.0.0.1");
    assert_int_equal(p.api_port, 8888);
    assert_int_equal(p.routers.count, 0);
    assert_int_equal(p.limits.sequences, 16);
    assert_int_equal(p.limits.context, 0);
    assert_int_equal(p.limits.cache_tokens, 0);
    assert_int_equal(p.limits.step_rows, 256);
    assert_int_equal(p.limits.steps_in_flight, 2);
    assert_int_equal(p.limits.prefix_cache, 0);
    assert_int_equal(p.limits.peer_timeout_ms, 1500);
    assert_int_equal(p.limits.start_timeout_s, 120);
    assert_false(p.limits.exit_on_peer_loss);
    tr_placement_free(&p);
}

static void memory_that_is_not_said_is_a_share_of_what_is_free(void **state)
{
    (void)state;
    tr_placement p;
    tr_error err = {0};
    uint32_t sharers = 9;

    /* a, b and d stand on this machine, c and e on another one. */
    CHECK_STATUS(parse(&p,
                       "model: /m\nnodes:\n- name: a\n- {name: b, host: localhost}\n"
                       "- {name: c, host: far}\n- {name: d, memory: 100 B}\n"
                       "- {name: e, host: far, memory: 7 B}\n",
                       &err),
                 TR_OK);
    assert_int_equal(tr_placement_memory(&p, 0, 1000, &sharers), (900 - 100) / 2);
    assert_int_equal(sharers, 2);
    assert_int_equal(tr_placement_memory(&p, 1, 1000, NULL), (900 - 100) / 2);
    assert_int_equal(tr_placement_memory(&p, 2, 1000, &sharers), 900 - 7);
    assert_int_equal(sharers, 1);
    assert_int_equal(tr_placement_memory(&p, 3, 1000, &sharers), 100);
    assert_int_equal(sharers, 0);
    assert_int_equal(tr_placement_memory(&p, 0, 50, NULL), 1); /* not 0, which is no limit */
    assert_true(tr_placement_memory(&p, 2, UINT64_MAX, NULL) > UINT64_MAX / 10 * 8);
    tr_placement_free(&p);

    CHECK_STATUS(parse(&p,
                       "model: /m\ntransport: loop\nnodes:\n- {name: a, host: near}\n"
                       "- {name: b, host: far}\n",
                       &err),
                 TR_OK);
    assert_int_equal(tr_placement_memory(&p, 0, 1000, NULL), 450); /* one process after all */
    tr_placement_free(&p);
}

static void nodes_of_one_process_need_no_control_url(void **state)
{
    (void)state;
    tr_placement p;

    CHECK_STATUS(parse(&p, "model: m\nnodes: [{name: a}, {name: b}]\ntransport: loop\n", NULL),
                 TR_OK);
    assert_string_equal(p.nodes[0].control, "");
    assert_string_equal(p.nodes[1].control, "");
    tr_placement_free(&p);
}

static char *print(const tr_placement *p)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);

    tr_placement_print(p, out);
    fclose(out);
    return text;
}

static void a_printed_placement_reads_back_the_same(void **state)
{
    (void)state;
    tr_placement p, again;
    tr_error err = {0};

    CHECK_STATUS(parse(&p, whole_file, &err), TR_OK);
    char *text = print(&p);
    CHECK_STATUS(tr_placement_parse(&again, "again.yaml", text, strlen(text), &err), TR_OK);
    check_whole(&again);
    assert_string_equal(again.model, p.model);
    char *text_again = print(&again);
    assert_string_equal(text, text_again);
    free(text);
    free(text_again);
    tr_placement_free(&p);
    tr_placement_free(&again);
}

static void quotes_and_backslashes_survive_printing(void **state)
{
    (void)state;
    tr_placement p, again;
    tr_error err = {0};

    CHECK_STATUS(parse(&p, "model: '/a \"b\" \\c: #d'\nnodes: [{name: \"no\"}]\n", &err), TR_OK);
    char *text = print(&p);
    CHECK_STATUS(parse(&again, text, &err), TR_OK);
    assert_string_equal(again.model, "/a \"b\" \\c: #d");
    assert_string_equal(again.nodes[0].name, "no");
    free(text);
    tr_placement_free(&p);
    tr_placement_free(&again);
}

static void the_local_placement_is_one_node_with_everything(void **state)
{
    (void)state;
    tr_placement p, again;
    tr_error err = {0};

    tr_placement_local(&p, "/models/tiny", 2);
    assert_int_equal(p.nodes_count, 1);
    assert_string_equal(p.nodes[0].name, "local");
    assert_int_equal(p.nodes[0].threads, 2);
    assert_string_equal(p.transport, "loop");
    assert_int_equal(p.api_port, 0);
    char *text = print(&p);
    CHECK_STATUS(parse(&again, text, &err), TR_OK);
    free(text);
    tr_placement_free(&p);
    tr_placement_free(&again);
}

static void sizes_are_read_in_binary_units(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t bytes;
    } rows[] = {
        {"1 B", 1},
        {"1KiB", 1024},
        {"512 MiB", 512ull << 20},
        {"0.5 GiB", 512ull << 20},
        {"1.125 TiB", (1ull << 40) + (1ull << 37)},
    };
    char text[128];

    for (size_t i = 0; i < COUNT(rows); i++) {
        tr_placement p;
        snprintf(text, sizeof(text), "model: m\nnodes: [{name: a, memory: %s}]\n", rows[i].text);
        CHECK_STATUS(parse(&p, text, NULL), TR_OK);
        assert_true(p.nodes[0].memory_bytes == rows[i].bytes);
        tr_placement_free(&p);
    }
}

#define TWO        "model: m\nnodes: [{name: a}, {name: b}]\n"
#define NODE(rest) "model: m\nnodes:\n  - name: a\n    " rest "\n"

/* Files as people get them wrong; named is what the sentence must contain. */
static const struct {
    const char *text, *named;
} bad_files[] = {
    {"", "found nothing, expected a mapping"},
    {"# only a comment\n", "found nothing, expected a mapping"},
    {"just text\n", "found 'just text', expected a mapping"},
    {"- a\n- b\n", "found a list, expected a mapping"},
    {"nodes: [{name: a}]\n", "found no 'model', expected one"},
    {"model: m\n", "found no 'nodes', expected one"},
    {"model: m\nnodes: []\n", "2:8: nodes: found an empty list"},
    {"model: m\nnodes:\n", "nodes: found nothing, expected a list"},
    {"model: m\nnodes: a\n", "nodes: found 'a', expected a list"},
    {"model: m\nnodes: [a]\n", "nodes[0]: found 'a', expected a mapping"},
    {"model: m\nnodes: [{host: h}]\n", "2:9: nodes[0]: found no 'name'"},
    {"model: ''\nnodes: [{name: a}]\n", "1:8: model: found nothing, expected a text"},
    {"model: yes\nnodes: [{name: a}]\n", "model: found 'yes', expected a text (in quotes"},
    {"model: ~\nnodes: [{name: a}]\n", "model: found '~', expected a text"},
    {"model: [m]\nnodes: [{name: a}]\n", "model: found a list, expected a text"},
    {"model: \"a\\nb\"\nnodes: [{name: a}]\n", "model: found the control character 0x0a"},
    {"modell: m\nnodes: [{name: a}]\n",
     "1:1: found the unknown key 'modell', expected one of model"},
    {"model: m\nmodel: n\nnodes: [{name: a}]\n", "2:1: found the key 'model' a second time"},
    {"? [a]\n: m\n", "found a list, expected a key"},
    {"model: &x m\nnodes: [{name: a}]\n", "model: found the anchor '&x'"},
    {"model: m\nnodes: *x\n", "nodes: found an alias"},
    {"model: !!str m\nnodes: [{name: a}]\n", "model: found the tag 'tag:yaml.org,2002:str'"},
    {"model: m\nnodes: !x [{name: a}]\n", "nodes: found the tag '!x'"},
    {"model: m\nnodes: [&n {name: a}]\n", "nodes[0]: found the anchor '&n'"},
    {"model: m\nnodes: [{name: a}\n", "two.yaml:3:1: nodes[1]: did not find expected ',' or ']'"},
    {"model: m\n\tnodes: x\n", "two.yaml:2:"},
    {"model: m\nnodes: [{name: a}]\n---\nmodel: n\n", "found a second document, expected the end"},
    {"model: m\nnodes: [{name: \xff}]\n", "invalid leading UTF-8 octet at byte 24"},
    {TWO "activations: int8\n", "3:14: activations: found 'int8', expected f32 or nvfp4"},
    {TWO "transport: tcp\n", "3:12: transport: found 'tcp', expected ucx, nng or loop"},
    {NODE("name: b"), "nodes[0]: found the key 'name' a second time"},
    {"model: m\nnodes: [{name: a}, {name: a}]\n",
     "2:20: nodes[1]: found the name 'a' a second time"},
    {"model: m\nnodes: [{name: a b}]\n", "nodes[0].name: found 'a b', expected a name of letters"},
    {NODE("host: http://x"), "nodes[0].host: found 'http://x', expected a host name"},
    {NODE("control: 127.0.0.1:7701"), "nodes[0].control: found '127.0.0.1:7701', expected a URL"},
    {NODE("control: tcp://127.0.0.1"), "nodes[0].control: found 'tcp://127.0.0.1', expected a URL"},
    {NODE("control: tcp://h:0"), "nodes[0].control: found 'tcp://h:0'"},
    {NODE("control: tcp://h:65536"), "nodes[0].control: found 'tcp://h:65536'"},
    {"model: m\nnodes: [{name: a, control: 'ipc:///x'}, {name: b, control: 'ipc:///x'}]\n",
     "nodes[1].control: found 'ipc:///x' of a again"},
    {NODE("memory: 2 GB"), "4:13: nodes[0].memory: found '2 GB', expected a size such as 2 GiB"},
    {NODE("memory: 2"), "nodes[0].memory: found '2'"},
    {NODE("memory: 0 GiB"), "nodes[0].memory: found '0 GiB'"},
    {NODE("memory: -1 GiB"), "nodes[0].memory: found '-1 GiB'"},
    {NODE("memory: 1.2345 GiB"), "nodes[0].memory: found '1.2345 GiB'"},
    {NODE("memory: 99999999999 TiB"), "nodes[0].memory: found '99999999999 TiB'"},
    {NODE("checkpoint: remote"), "nodes[0].checkpoint: found 'remote', expected local or stream"},
    {"model: m\nnodes: [{name: a, checkpoint: stream}, {name: b, checkpoint: stream}]\n",
     "nodes: found checkpoint: stream for every node, expected one that has the model"},
    {NODE("threads: 0"), "nodes[0].threads: found '0', expected a whole number from 1 to 256"},
    {NODE("threads: 2.5"), "nodes[0].threads: found '2.5'"},
    {NODE("threads: '2'"), "nodes[0].threads: found '2'"},
    {NODE("workers: 65"), "nodes[0].workers: found '65', expected a whole number from 1 to 64"},
    {NODE("transport: ucx"), "nodes[0].transport: found 'ucx', expected a mapping"},
    {NODE("transport: {tls: posix,cma}"),
     "nodes[0].transport.cma: found nothing, expected the option's value, in quotes"},
    {NODE("transport: {tls: 'a,b=c'}"),
     "nodes[0].transport.tls: found 'a,b=c', expected a value without '=' behind a comma"},
    {NODE("transport: {TLS: a}"),
     "nodes[0].transport.TLS: found 'a', expected a key of small letters"},
    {NODE("transport: {tls: a, tls: b}"), "nodes[0].transport: found the key 'tls' a second time"},
    {TWO "api: {port: 65536}\n",
     "api.port: found '65536', expected a whole number from 0 to 65535"},
    {TWO "api: {port: http}\n", "api.port: found 'http'"},
    {TWO "api: 8888\n", "api: found '8888', expected a mapping"},
    {TWO "batcher: c\n", "3:10: batcher: found 'c', expected the name of one of the nodes"},
    {TWO "sampler: c\n", "sampler: found 'c', expected the name"},
    {TWO "routers: [{layers: 0-7}]\n", "routers[0]: found no 'node'"},
    {TWO "routers: [{node: c}]\n", "3:18: routers[0].node: found 'c', expected the name"},
    {TWO "routers: [{node: a, terms: 0}]\n", "routers[0]: found the unknown key 'terms'"},
    {TWO "attention: [{node: a, layers: 7-0}]\n",
     "attention[0].layers: found '7-0', expected a range"},
    {TWO "attention: [{node: a, terms: 0..3}]\n", "attention[0].terms: found '0..3'"},
    {TWO "experts: [{node: a}, {node: b, experts: -1}]\n", "experts[1].experts: found '-1'"},
    {TWO "experts: [{node: a, experts: [0, 1]}]\n", "experts[0].experts: found a list"},
    {TWO "slices: [{node: a, slices: 0-4294967295}]\n", "slices[0].slices: found '0-4294967295'"},
    {TWO "vocabulary: [{node: a, layers: 0}]\n", "vocabulary[0]: found the unknown key 'layers'"},
    {TWO "vocabulary: [{node: a, rows: many}]\n", "vocabulary[0].rows: found 'many'"},
    {TWO "limits: {sequences: 0}\n", "limits.sequences: found '0', expected a whole number from 1"},
    {TWO "limits: {context: 0x1000}\n", "limits.context: found '0x1000'"},
    {TWO "limits: {context: 100, cache_tokens: 99}\n",
     "limits: found cache_tokens 99, expected at least"},
    {TWO "limits: {step_rows: 100}\n", "limits.step_rows: found '100', expected a multiple of 64"},
    {TWO "limits: {prefix_cache: 256}\n", "limits.prefix_cache: found '256'"},
    {TWO "limits: {steps_in_flight: 5}\n", "limits.steps_in_flight: found '5'"},
    {TWO "limits: {peer_timeout: 1500}\n",
     "limits.peer_timeout: found '1500', expected a duration"},
    {TWO "limits: {peer_timeout: 5 ms}\n",
     "limits.peer_timeout: found '5 ms', expected a duration from 100 ms"},
    {TWO "limits: {start_timeout: 1500 ms}\n",
     "limits.start_timeout: found '1500 ms', expected a duration in whole seconds"},
    {TWO "limits: {exit_on_peer_loss: yes}\n",
     "limits.exit_on_peer_loss: found 'yes', expected true or false"},
    {TWO "limits: {exit_on_peer_loss: 'true'}\n",
     "limits.exit_on_peer_loss: found 'true', expected true"},
    {TWO "limits: {expert_cache: 1}\n", "limits: found the unknown key 'expert_cache'"},
};

static void a_wrong_file_is_one_sentence_with_place_key_found_and_expected(void **state)
{
    (void)state;

    assert_true(COUNT(bad_files) >= 40);
    for (size_t i = 0; i < COUNT(bad_files); i++) {
        tr_placement p;
        tr_error err = {0};
        tr_status status = parse(&p, bad_files[i].text, &err);
        if (status != TR_E_INVALID || strstr(err.text, bad_files[i].named) == NULL)
            print_error("row %zu: %s\n  \"%s\"\n  does not name \"%s\"\n", i, bad_files[i].text,
                        err.text, bad_files[i].named);
        assert_int_equal(status, TR_E_INVALID);
        CHECK_ERR_NAMES(err, bad_files[i].named);
        assert_memory_equal(err.text, NAME, strlen(NAME));
    }
}

static void more_nodes_than_the_limit_are_refused(void **state)
{
    (void)state;
    char text[1024] = "model: m\nnodes:\n";
    tr_placement p;
    tr_error err = {0};

    for (int i = 0; i <= TR_NODES_MAX; i++)
        snprintf(text + strlen(text), sizeof(text) - strlen(text), "  - name: n%d\n", i);
    CHECK_STATUS(parse(&p, text, &err), TR_E_INVALID);
    CHECK_ERR_NAMES(err, "nodes[16]: found a mapping, expected at most 16 items");
}

static void more_rules_than_the_limit_are_refused(void **state)
{
    (void)state;
    char *text = NULL;
    size_t size = 0;
    tr_placement p;
    tr_error err = {0};
    FILE *out = open_memstream(&text, &size);

    fprintf(out, TWO "experts:\n");
    for (int i = 0; i <= TR_RULES_MAX; i++)
        fprintf(out, "  - {node: a, experts: %d}\n", i);
    fclose(out);
    CHECK_STATUS(parse(&p, text, &err), TR_E_INVALID);
    CHECK_ERR_NAMES(err, "experts[4096]: found a mapping, expected at most 4096 items");
    free(text);
}

static void a_huge_file_and_a_deep_one_are_refused_quickly(void **state)
{
    (void)state;
    size_t size = (1u << 20) + 1;
    char *text = malloc(size);
    tr_placement p;
    tr_error err = {0};

    assert_non_null(text);
    memset(text, '[', size);
    CHECK_STATUS(tr_placement_parse(&p, NAME, text, size, &err), TR_E_INVALID);
    CHECK_ERR_NAMES(err, "1048577 bytes, expected at most 1048576");
    CHECK_STATUS(tr_placement_parse(&p, NAME, text, 100000, &err), TR_E_INVALID);
    CHECK_ERR_NAMES(err, "found a list, expected a mapping");
    free(text);
}

static void a_long_path_still_leaves_room_for_the_sentence(void **state)
{
    (void)state;
    char name[512];
    tr_placement p;
    tr_error err = {0};
    const char *text = "model: m\nnodes: [{name: a, memory: lots}]\n";

    memset(name, 'd', sizeof(name) - 1);
    name[sizeof(name) - 1] = '\0';
    memcpy(name + sizeof(name) - 12, "/two.yaml", 9);
    CHECK_STATUS(tr_placement_parse(&p, name, text, strlen(text), &err), TR_E_INVALID);
    CHECK_ERR_NAMES(err, "nodes[0].memory: found 'lots', expected a size");
}

static void a_file_that_cannot_be_read_is_named(void **state)
{
    (void)state;
    tr_placement p;
    tr_error err = {0};

    CHECK_STATUS(tr_placement_read(&p, "/nonexistent/two.yaml", &err), TR_E_INVALID);
    CHECK_ERR_NAMES(err, "/nonexistent/two.yaml: No such file");
    CHECK_STATUS(tr_placement_read(&p, "/", &err), TR_E_INVALID);
    CHECK_ERR_NAMES(err, "/: Is a directory");
}

static void the_example_file_reads(void **state)
{
    (void)state;
    tr_placement p;
    tr_error err = {0};
    const char *path = getenv("TROUPE_EXAMPLE_PLACEMENT");

    assert_non_null(path);
    tr_status status = tr_placement_read(&p, path, &err);
    if (status != TR_OK)
        print_error("%s\n", err.text);
    assert_int_equal(status, TR_OK);
    assert_int_equal(p.nodes_count, 2);
    assert_int_equal(access(p.model, R_OK), 0); /* the bundled model */
    tr_placement_free(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_key_arrives_where_it_belongs),
        cmocka_unit_test(what_is_left_out_has_its_default),
        cmocka_unit_test(memory_that_is_not_said_is_a_share_of_what_is_free),
        cmocka_unit_test(nodes_of_one_process_need_no_control_url),
        cmocka_unit_test(a_printed_placement_reads_back_the_same),
        cmocka_unit_test(quotes_and_backslashes_survive_printing),
        cmocka_unit_test(the_local_placement_is_one_node_with_everything),
        cmocka_unit_test(sizes_are_read_in_binary_units),
        cmocka_unit_test(a_wrong_file_is_one_sentence_with_place_key_found_and_expected),
        cmocka_unit_test(more_nodes_than_the_limit_are_refused),
        cmocka_unit_test(more_rules_than_the_limit_are_refused),
        cmocka_unit_test(a_huge_file_and_a_deep_one_are_refused_quickly),
        cmocka_unit_test(a_long_path_still_leaves_room_for_the_sentence),
        cmocka_unit_test(a_file_that_cannot_be_read_is_named),
        cmocka_unit_test(the_example_file_reads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
