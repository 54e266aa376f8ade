/* test_admin.c - the admin methods of a node, asked over its control socket. */
#include "tests/check.h"

#include "tests/api/fake_cluster.h"

#include "api/admin.h"
#include "core/trace.h"

#include <stdlib.h>
#include <unistd.h>

static char folder[64];

typedef struct {
    tr_cluster *cluster;
    tr_control_client *client;
    tr_control_reply reply;
} fixture;

static int set_up(void **state)
{
    static int number;
    char urls[2][128];
    fixture *f = calloc(1, sizeof(*f));

    assert_non_null(f);
    for (int i = 0; i < 2; i++)
        snprintf(urls[i], sizeof(urls[i]), "ipc://%s/%d.%d", folder, number, i);
    number++;
    const char *both[2] = {urls[0], urls[1]};
    f->cluster = fake_cluster_open(both, 0, MODELS_DIR "/tiny-solar-nvfp4");
    tr_admin_register(f->cluster);
    fake_cluster_start(f->cluster);
    CHECK_STATUS(tr_control_client_open(&f->client, urls[0], NULL), TR_OK);
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    fixture *f = *state;

    tr_control_client_close(f->client);
    fake_cluster_close(f->cluster);
    free(f);
    return 0;
}

/* Asks a method; with ring >= 0 also "ring". The reply stays in f. */
static tr_status ask(fixture *f, const char *method, int64_t ring, tr_error *err)
{
    msgpack_sbuffer request;
    msgpack_packer pk;

    msgpack_sbuffer_init(&request);
    msgpack_packer_init(&pk, &request, msgpack_sbuffer_write);
    msgpack_pack_map(&pk, ring >= 0 ? 2 : 1);
    tr_pack_text(&pk, "method", method);
    if (ring >= 0)
        tr_pack_i64(&pk, "ring", ring);
    tr_status status =
        tr_control_call(f->client, &request, tr_clock_ns() + 10000000000ull, &f->reply, err);
    msgpack_sbuffer_destroy(&request);
    return status;
}

static void check_text(const msgpack_object *map, const char *key, const char *expected)
{
    char text[256];

    assert_true(tr_map_text(map, key, text, sizeof(text)));
    assert_string_equal(text, expected);
}

static void check_u64(const msgpack_object *map, const char *key, uint64_t expected)
{
    uint64_t value = 0;

    assert_true(tr_map_u64(map, key, &value));
    assert_true(value == expected);
}

static void status_tells_health_model_memory_figures_and_peers(void **state)
{
    fixture *f = *state;
    int64_t offset_ns = 0;
    bool self = false;

    CHECK_STATUS(ask(f, "status", -1, NULL), TR_OK);
    check_text(f->reply.map, "node", "spark1");
    check_text(f->reply.map, "health", "serving");
    check_u64(f->reply.map, "api_port", 8888);
    const msgpack_object *model = tr_map_get(f->reply.map, "model");
    check_text(model, "architecture", "solar_open2");
    check_u64(model, "context_tokens", 4096);
    const msgpack_object *memory = tr_map_get(f->reply.map, "memory");
    check_u64(memory, "limit_bytes", 2ull << 30);
    check_u64(memory, "used_bytes", (1ull << 30) + (1ull << 20));
    const msgpack_object_array *parts = tr_map_list(memory, "parts");
    assert_int_equal(parts->size, 2);
    check_text(&parts->ptr[1], "change", "limits.cache_tokens");
    check_u64(tr_map_get(f->reply.map, "stats"), "generated_tokens", 777);
    const msgpack_object_array *peers = tr_map_list(f->reply.map, "peers");
    assert_int_equal(peers->size, 2);
    assert_true(tr_map_bool(&peers->ptr[0], "self", &self));
    assert_true(self);
    check_text(&peers->ptr[1], "name", "spark2");
    check_text(&peers->ptr[1], "path", "posix");
    assert_true(tr_map_i64(&peers->ptr[1], "clock_offset_ns", &offset_ns));
    assert_true(offset_ns == -1500);
    tr_control_reply_free(&f->reply);
}

static void actors_lists_every_actor_of_the_node(void **state)
{
    fixture *f = *state;

    CHECK_STATUS(ask(f, "actors", -1, NULL), TR_OK);
    const msgpack_object_array *actors = tr_map_list(f->reply.map, "actors");
    assert_int_equal(actors->size, 1);
    check_text(&actors->ptr[0], "name", "echo@spark1");
    check_text(&actors->ptr[0], "kind", "echo");
    check_u64(&actors->ptr[0], "mailbox_depth", 0);
    tr_control_reply_free(&f->reply);
}

static void trace_gives_names_first_and_then_one_ring_at_a_time(void **state)
{
    fixture *f = *state;
    tr_error err = {0};
    uint64_t rings = 0, found = 0;

    CHECK_STATUS(ask(f, "trace", -1, &err), TR_OK);
    assert_true(tr_map_u64(f->reply.map, "rings", &rings));
    check_text(&tr_map_list(f->reply.map, "actors")->ptr[0], "name", "echo@spark1");
    assert_int_equal(tr_map_list(f->reply.map, "kernels")->size, TR_KERNELS_COUNT);
    tr_control_reply_free(&f->reply);

    for (uint64_t ring = 0; ring < rings; ring++) {
        char thread[64];
        const void *bytes = NULL;
        size_t size = 0;
        CHECK_STATUS(ask(f, "trace", (int64_t)ring, &err), TR_OK);
        assert_true(tr_map_text(f->reply.map, "thread", thread, sizeof(thread)));
        assert_true(tr_map_bytes(f->reply.map, "events", &bytes, &size));
        assert_int_equal(size % sizeof(tr_trace_event), 0);
        if (strcmp(thread, "fake") == 0)
            found = size / sizeof(tr_trace_event);
        tr_control_reply_free(&f->reply);
    }
    assert_int_equal(found, FAKE_EVENTS + 20);

    /* Past all rings that a process can have: threads may have begun since they were counted. */
    CHECK_STATUS(ask(f, "trace", TR_TRACE_RINGS_MAX, &err), TR_E_INVALID);
    CHECK_ERR_NAMES(err, "ring: found");
    tr_control_reply_free(&f->reply);
}

static void the_clock_is_the_one_of_the_events(void **state)
{
    fixture *f = *state;
    uint64_t before_ns = tr_clock_ns(), clock_ns = 0;

    CHECK_STATUS(ask(f, "clock", -1, NULL), TR_OK);
    assert_true(tr_map_u64(f->reply.map, "clock_ns", &clock_ns));
    assert_true(clock_ns > before_ns && clock_ns < tr_clock_ns());
    tr_control_reply_free(&f->reply);
}

static void peers_tells_where_the_others_listen(void **state)
{
    fixture *f = *state;
    char control[128];

    CHECK_STATUS(ask(f, "peers", -1, NULL), TR_OK);
    const msgpack_object_array *peers = tr_map_list(f->reply.map, "peers");
    assert_int_equal(peers->size, 2);
    assert_true(tr_map_text(&peers->ptr[1], "control", control, sizeof(control)));
    assert_memory_equal(control, "ipc://", 6);
    tr_control_reply_free(&f->reply);
}

static void shutdown_is_passed_on_and_answered(void **state)
{
    fixture *f = *state;

    assert_false(fake_cluster_was_asked_to_stop(f->cluster));
    CHECK_STATUS(ask(f, "shutdown", -1, NULL), TR_OK);
    check_text(f->reply.map, "node", "spark1");
    tr_control_reply_free(&f->reply);
    assert_true(fake_cluster_was_asked_to_stop(f->cluster));
}

int main(void)
{
#define WITH_NODE(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        WITH_NODE(status_tells_health_model_memory_figures_and_peers),
        WITH_NODE(actors_lists_every_actor_of_the_node),
        WITH_NODE(trace_gives_names_first_and_then_one_ring_at_a_time),
        WITH_NODE(the_clock_is_the_one_of_the_events),
        WITH_NODE(peers_tells_where_the_others_listen),
        WITH_NODE(shutdown_is_passed_on_and_answered),
    };

    snprintf(folder, sizeof(folder), "/tmp/troupe-admin-XXXXXX");
    if (mkdtemp(folder) == NULL)
        return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    rmdir(folder); /* empty, unless a test failed */
    return failed;
}
