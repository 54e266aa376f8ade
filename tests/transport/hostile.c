/* hostile.c - bytes that no node of ours would send.
 *
 * Goal: whoever can reach a node's port can neither crash it, nor have anything delivered, nor
 * disturb the traffic of its true peers. Method: nodes 0 and 1 talk; a stranger, below the
 * transport, sends garbage to node 0, also in the name of node 2, which does not exist. */
#include "tests/check.h"
#include "core/runtime.h"
#include "tests/transport/node.h"
#include "transport/address.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#ifdef TR_HAVE_UCX
#include <ucp/api/ucp.h>
#endif

static node nodes[2];
static uint32_t rounds; /* messages each way so far */

static void open_nodes(const char *transport, const char *options)
{
    tr_error err = {0};

    memset(nodes, 0, sizeof(nodes));
    rounds = 0;
    for (uint32_t i = 0; i < 2; i++)
        CHECK_STATUS(node_open(&nodes[i], tr_transport_find(transport), options, i, 3, 64, 2, &err),
                     TR_OK);
    CHECK_STATUS(node_connect(&nodes[0], &nodes[1], &err), TR_OK);
    CHECK_STATUS(node_connect(&nodes[1], &nodes[0], &err), TR_OK);
}

static int close_nodes(void **state)
{
    (void)state;
    bool complete = node_finish(&nodes[0]);
    complete &= node_finish(&nodes[1]);
    return complete ? 0 : -1;
}

/* The true peers still reach each other, and nothing else has been delivered. */
static void check_traffic(void)
{
    rounds++;
    for (uint32_t from = 0; from < 2; from++) {
        node *other = &nodes[1 - from];
        CHECK_STATUS(node_send_patiently(&nodes[from], other, 4096), TR_OK);
        assert_true(node_wait(&nodes[from], other, &other->delivered_count, rounds));
        assert_false(other->broken);
        assert_int_equal(other->delivered_count, rounds);
    }
}

/* The transport's own part of node 0's address. */
static size_t body_of_node_0(uint8_t *body, size_t size_max)
{
    uint8_t address[TR_ADDRESS_SIZE_MAX];
    const void *found = NULL;
    size_t size = 0, found_size = 0;
    tr_error err = {0};

    CHECK_STATUS(nodes[0].ops->address(nodes[0].transport, address, sizeof(address), &size, &err),
                 TR_OK);
    CHECK_STATUS(tr_address_read(&found, &found_size, nodes[0].ops->name, 0, address, size, &err),
                 TR_OK);
    assert_true(found_size < size_max);
    memcpy(body, found, found_size);
    body[found_size] = 0;
    return found_size;
}

/* -- nng: a TCP connection -- */

typedef struct {
    const char *what;
    const char *tag;     /* of a hello before the rest; NULL: none */
    uint32_t node_index; /* in the hello */
    uint32_t nodes_count;
    uint32_t garbage_size; /* bytes after it */
    uint8_t garbage;       /* their value */
    bool ends_node_2;      /* the stranger was believed to be node 2, and then was not any more */
} nng_case;

static const nng_case nng_cases[] = {
    {"nothing", NULL, 0, 0, 0, 0, false},
    {"one byte", NULL, 0, 0, 1, 7, false},
    {"zeros", NULL, 0, 0, 4096, 0, false},
    {"ones", NULL, 0, 0, 100000, 255, false},
    {"a hello of node 0 itself", "trnngh2", 0, 3, 0, 0, false},
    {"a hello of a node that is there", "trnngh2", 1, 3, 0, 0, false},
    {"a hello of a node beyond the cluster", "trnngh2", 3, 3, 0, 0, false},
    {"a hello of another cluster", "trnngh2", 2, 4, 0, 0, false},
    {"a bye first", "trnngb2", 2, 3, 0, 0, false},
    {"a hello, then garbage", "trnngh2", 2, 3, 1000, 170, true},
};

static int dial_node_0(void)
{
    uint8_t url[TR_ADDRESS_SIZE_MAX];
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};

    body_of_node_0(url, sizeof(url));
    const char *port = strrchr((char *)url, ':');
    assert_non_null(port);
    address.sin_port = htons((uint16_t)strtoul(port + 1, NULL, 10));
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    return fd;
}

/* Whether node 0 hangs up while both nodes go on. */
static bool is_hung_up(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    uint64_t deadline_ns = tr_clock_ns() + NODE_PATIENCE_NS;
    char byte;

    while (tr_clock_ns() < deadline_ns) {
        nodes[0].ops->poll(nodes[0].transport);
        nodes[1].ops->poll(nodes[1].transport);
        if (poll(&p, 1, 1) > 0)
            return recv(fd, &byte, 1, 0) <= 0;
    }
    return false;
}

static void strangers_on_the_nng_port_are_hung_up_on(void **state)
{
    static uint8_t garbage[100000];

    (void)state;
    open_nodes("nng", NULL);
    for (size_t i = 0; i < sizeof(nng_cases) / sizeof(nng_cases[0]); i++) {
        const nng_case *c = &nng_cases[i];
        uint8_t hello[64] = {0};
        int fd = dial_node_0();

        if (c->tag != NULL) {
            memcpy(hello, c->tag, strlen(c->tag));
            memcpy(hello + 8, &c->node_index, sizeof(c->node_index));
            memcpy(hello + 12, &c->nodes_count, sizeof(c->nodes_count));
            assert_int_equal(send(fd, hello, sizeof(hello), MSG_NOSIGNAL), sizeof(hello));
        }
        memset(garbage, c->garbage, sizeof(garbage));
        (void)send(fd, garbage, c->garbage_size, MSG_NOSIGNAL); /* it may have hung up already */
        check_traffic();
        print_message("# %s\n", c->what);
        assert_true(is_hung_up(fd));
        close(fd);
        check_traffic();
        assert_int_equal(nodes[0].downs_count, c->ends_node_2 ? 1 : 0);
        assert_true(!c->ends_node_2 || nodes[0].down_node == 2);
    }
    assert_int_equal(nodes[1].downs_count, 0);
}

/* -- ucx: active messages from a worker of our own -- */

#ifdef TR_HAVE_UCX

static void ignore_error(void *arg, ucp_ep_h ep, ucs_status_t status)
{
    (void)arg;
    (void)ep;
    (void)status;
}

static void send_am(ucp_worker_h worker, ucp_ep_h ep, unsigned id, const void *header,
                    size_t header_size, const void *data, size_t size)
{
    ucp_request_param_t params = {.op_attr_mask = 0};
    uint64_t deadline_ns = tr_clock_ns() + NODE_PATIENCE_NS;

    ucs_status_ptr_t request = ucp_am_send_nbx(ep, id, header, header_size, data, size, &params);
    if (!UCS_PTR_IS_PTR(request))
        return;
    while (ucp_request_check_status(request) == UCS_INPROGRESS && tr_clock_ns() < deadline_ns) {
        ucp_worker_progress(worker);
        nodes[0].ops->poll(nodes[0].transport);
    }
    ucp_request_free(request);
}

static void active_messages_of_a_stranger_are_refused(void **state)
{
    const char *tls = *state;
    static uint8_t garbage[300000];
    uint8_t body[TR_ADDRESS_SIZE_MAX];
    char options[64];
    ucp_config_t *config;
    ucp_context_h context;
    ucp_worker_h worker;
    ucp_ep_h ep;

    snprintf(options, sizeof(options), "tls=%s", tls);
    open_nodes("ucx", options);
    size_t size = body_of_node_0(body, sizeof(body));
    /* The version of UCX, the life of the transport and the sizes of the addresses come first. */
    uint16_t sizes[TR_NODES_MAX];
    size_t head_size = 8 + sizeof(sizes);
    assert_true(size > head_size);
    memcpy(sizes, body + 8, sizeof(sizes));
    assert_int_equal(sizes[0], 0);
    assert_int_equal(size, head_size + sizes[1] + sizes[2]);

    assert_int_equal(ucp_config_read(NULL, NULL, &config), UCS_OK);
    assert_int_equal(ucp_config_modify(config, "TLS", tls), UCS_OK);
    ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_AM};
    assert_int_equal(ucp_init(&params, config, &context), UCS_OK);
    ucp_config_release(config);
    ucp_worker_params_t worker_params = {.field_mask = 0};
    assert_int_equal(ucp_worker_create(context, &worker_params, &worker), UCS_OK);
    ucp_ep_params_t ep_params = {
        .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLER,
        .address = (const ucp_address_t *)(body + head_size + sizes[1]), /* for node 2 */
        .err_handler = {.cb = ignore_error},
    };
    assert_int_equal(ucp_ep_create(worker, &ep_params, &ep), UCS_OK);

    /* Ids that nobody uses there, those of node 1, of node 0 itself and of nodes beyond the
     * cluster. */
    static const unsigned unknown_ids[] = {0, 1, 3, 15, 16, 17, 19, 31, 32, 1000, 65534, 65535};
    for (size_t i = 0; i < sizeof(unknown_ids) / sizeof(unknown_ids[0]); i++) {
        send_am(worker, ep, unknown_ids[i], garbage, 80, garbage, 100);
        send_am(worker, ep, unknown_ids[i], garbage, 12, NULL, 0);
        send_am(worker, ep, unknown_ids[i], garbage, 80, garbage, sizeof(garbage));
    }
    check_traffic();
    assert_int_equal(nodes[0].downs_count, 0);

    /* In the name of node 2: it is then not believed any more, and nobody else is concerned. */
    memset(garbage, 170, sizeof(garbage));
    send_am(worker, ep, 2, garbage, 80, garbage, 100);
    send_am(worker, ep, 2, garbage, 5, garbage, sizeof(garbage));
    send_am(worker, ep, 2, NULL, 0, NULL, 0);
    send_am(worker, ep, 18, garbage, 8, NULL, 0);
    send_am(worker, ep, 18, garbage, 200, garbage, 9);
    check_traffic();
    assert_true(node_wait_down(&nodes[0]));
    check_traffic();
    assert_int_equal(nodes[0].downs_count, 1);
    assert_int_equal(nodes[0].down_node, 2);
    assert_int_equal(nodes[1].downs_count, 0);

    ucp_request_param_t close_params = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
                                        .flags = UCP_EP_CLOSE_FLAG_FORCE};
    ucs_status_ptr_t request = ucp_ep_close_nbx(ep, &close_params);
    while (UCS_PTR_IS_PTR(request) && ucp_request_check_status(request) == UCS_INPROGRESS)
        ucp_worker_progress(worker);
    if (UCS_PTR_IS_PTR(request))
        ucp_request_free(request);
    ucp_worker_destroy(worker);
    ucp_cleanup(context);
}

#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(strangers_on_the_nng_port_are_hung_up_on, close_nodes),
#ifdef TR_HAVE_UCX
        {"active_messages_of_a_stranger_are_refused (tcp)",
         active_messages_of_a_stranger_are_refused, NULL, close_nodes, (void *)(uintptr_t) "tcp"},
        {"active_messages_of_a_stranger_are_refused (posix)",
         active_messages_of_a_stranger_are_refused, NULL, close_nodes, (void *)(uintptr_t) "posix"},
#endif
    };
    return cmocka_run_group_tests_name("hostile", tests, NULL, NULL);
}
