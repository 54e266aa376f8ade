/* sim.c - see sim.h.
 *
 * A message lies in the queue of its pair with the time at which it is due, which never decreases
 * along the queue. It holds the sender's buffer until the receiver's poll copies it, or until the
 * sender closes: then the bytes move to memory of the net.
 *
 *   node   ABSENT --open--> OPEN --close--> CLOSED --open--> OPEN
 *          OPEN --crash--> CRASHED --close--> CLOSED
 *
 * A peer's end is told once, after everything that still arrives from it. */
#include "transport/sim/sim.h"

#include "transport/address.h"
#include "transport/options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define SIM_ROOM_MAX     256
#define SIM_POOL_WAIT_NS 20000 /* after a receiver's pool was found empty */

typedef enum { NODE_ABSENT, NODE_OPEN, NODE_CRASHED, NODE_CLOSED } node_phase;

typedef struct {
    tr_msg msg;     /* sealed; payload: a buffer of the sender, or NULL when bytes is set */
    uint8_t *bytes; /* owns; payload of a sender that is gone */
    uint64_t due_ns;
} sim_message;

/* From one node to another. */
typedef struct {
    sim_message *ring; /* owns; [SIM_ROOM_MAX], NULL before the first message */
    uint32_t first, count;
    uint64_t last_due_ns;
    uint64_t open_ns;   /* nothing is delivered before: the link is cut */
    uint64_t pool_ns;   /* likewise: the receiver had no buffer */
    uint64_t notice_ns; /* when the receiver learns that the sender is gone; UINT64_MAX: not yet */
} sim_pair;

typedef struct {
    node_phase phase;
    tr_transport *transport; /* borrows; NULL unless OPEN or CRASHED */
    uint32_t slow;
} sim_node;

struct tr_sim_net {
    tr_sim_config config;
    uint64_t number;
    char options[32];
    uint64_t random;
    uint64_t now_ns;
    uint64_t hash;
    sim_node nodes[TR_NODES_MAX];
    sim_pair pairs[TR_NODES_MAX][TR_NODES_MAX]; /* [from][to] */
    tr_sim_net *next;
};

struct tr_transport {
    tr_transport_config config;
    uint32_t payload_max;
    tr_sim_net *net;
    bool connected[TR_NODES_MAX];
    bool down[TR_NODES_MAX]; /* peer_down has been called */
};

/* Nets of this process, found by number. One thread uses all of this. */
static tr_sim_net *sim_nets;
static uint64_t sim_nets_count;

/* -- chance -- */

/* splitmix64 (Steele, Lea and Flood 2014). */
static uint64_t sim_random(tr_sim_net *net)
{
    uint64_t z = net->random += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static uint64_t sim_below(tr_sim_net *net, uint64_t n)
{
    return n == 0 ? 0 : sim_random(net) % n;
}

static bool sim_strikes(tr_sim_net *net, tr_sim_bug bug)
{
    return net->config.bug == bug && sim_below(net, net->config.bug_one_in) == 0;
}

uint64_t tr_sim_delay_ns(tr_sim_net *net, uint32_t from)
{
    uint64_t usual = net->config.delay_ns / 2 + sim_below(net, net->config.delay_ns * 3 / 2 + 1);
    uint64_t delay = sim_below(net, 16) == 0 ? sim_below(net, net->config.delay_max_ns + 1) : usual;
    return delay * net->nodes[from].slow;
}

/* -- queues -- */

static sim_message *sim_at(const sim_pair *pair, uint32_t i)
{
    return &pair->ring[(pair->first + i) % SIM_ROOM_MAX];
}

static void sim_forget(sim_message *m)
{
    tr_buf_unref(m->msg.payload);
    free(m->bytes);
    *m = (sim_message){.bytes = NULL};
}

/* Drops all but the oldest `kept` messages. */
static void sim_cut_queue(sim_pair *pair, uint32_t kept)
{
    while (pair->count > kept)
        sim_forget(sim_at(pair, --pair->count));
}

/* The oldest one goes, after it was delivered. */
static void sim_pop(sim_pair *pair)
{
    sim_forget(sim_at(pair, 0));
    pair->first = (pair->first + 1) % SIM_ROOM_MAX;
    pair->count--;
}

/* Moves what a node has under way to memory of the net: its buffers go. */
static void sim_own_payloads(tr_sim_net *net, uint32_t from)
{
    for (uint32_t to = 0; to < TR_NODES_MAX; to++) {
        sim_pair *pair = &net->pairs[from][to];
        for (uint32_t i = 0; i < pair->count; i++) {
            sim_message *m = sim_at(pair, i);
            if (m->msg.payload == NULL)
                continue;
            m->bytes = malloc(m->msg.header.payload_size);
            assert(m->bytes != NULL); /* a test's few kilobytes */
            memcpy(m->bytes, m->msg.payload->data, m->msg.header.payload_size);
            tr_buf_unref(m->msg.payload);
            m->msg.payload = NULL;
        }
    }
}

/* -- the net -- */

tr_status tr_sim_net_open(tr_sim_net **out, const tr_sim_config *config, tr_error *err)
{
    if (config->room < 1 || config->room > SIM_ROOM_MAX)
        return tr_fail(err, TR_E_INVALID, "sim: room %u, expected 1 to %d", config->room,
                       SIM_ROOM_MAX);
    if (config->bug != TR_SIM_BUG_NONE && config->bug_one_in == 0)
        return tr_fail(err, TR_E_INVALID, "sim: bug_one_in 0, expected at least 1");
    tr_sim_net *net = calloc(1, sizeof(*net));
    if (net == NULL)
        return tr_fail(err, TR_E_NOMEM, "sim: no memory for a net");
    net->config = *config;
    net->random = config->seed;
    net->number = ++sim_nets_count;
    snprintf(net->options, sizeof(net->options), "net=%llu", (unsigned long long)net->number);
    net->now_ns = 1;
    for (uint32_t n = 0; n < TR_NODES_MAX; n++) {
        net->nodes[n].slow = 1;
        for (uint32_t to = 0; to < TR_NODES_MAX; to++)
            net->pairs[n][to].notice_ns = UINT64_MAX;
    }
    net->next = sim_nets;
    sim_nets = net;
    *out = net;
    return TR_OK;
}

void tr_sim_net_close(tr_sim_net *net)
{
    tr_sim_net **link = &sim_nets;

    if (net == NULL)
        return;
    while (*link != net)
        link = &(*link)->next;
    *link = net->next;
    for (uint32_t from = 0; from < TR_NODES_MAX; from++) {
        assert(net->nodes[from].transport == NULL);
        for (uint32_t to = 0; to < TR_NODES_MAX; to++) {
            sim_cut_queue(&net->pairs[from][to], 0);
            free(net->pairs[from][to].ring);
        }
    }
    free(net);
}

const char *tr_sim_net_options(const tr_sim_net *net)
{
    return net->options;
}

uint64_t tr_sim_now_ns(const tr_sim_net *net)
{
    return net->now_ns;
}

void tr_sim_set_now_ns(tr_sim_net *net, uint64_t now_ns)
{
    assert(now_ns >= net->now_ns);
    net->now_ns = now_ns;
}

static uint64_t latest(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* When the pair's receiver has something to do. */
static uint64_t sim_pair_next_ns(const sim_pair *pair)
{
    if (pair->count == 0)
        return pair->notice_ns;
    return latest(sim_at(pair, 0)->due_ns, latest(pair->open_ns, pair->pool_ns));
}

uint64_t tr_sim_next_ns(const tr_sim_net *net, uint32_t node)
{
    uint64_t next_ns = UINT64_MAX;
    const tr_transport *t = net->nodes[node].transport;

    for (uint32_t from = 0; t != NULL && from < t->config.nodes_count; from++) {
        uint64_t at_ns = sim_pair_next_ns(&net->pairs[from][node]);
        if (!t->down[from] && at_ns < next_ns)
            next_ns = at_ns;
    }
    return next_ns;
}

uint32_t tr_sim_under_way(const tr_sim_net *net)
{
    uint32_t sum = 0;
    for (uint32_t to = 0; to < TR_NODES_MAX; to++)
        for (uint32_t from = 0; net->nodes[to].phase == NODE_OPEN && from < TR_NODES_MAX; from++)
            sum += net->pairs[from][to].count;
    return sum;
}

uint32_t tr_sim_stranded(const tr_sim_net *net, uint32_t node)
{
    const tr_buf *seen[TR_NODES_MAX * SIM_ROOM_MAX];
    uint32_t count = 0;
    for (uint32_t to = 0; to < TR_NODES_MAX; to++) {
        const sim_pair *pair = &net->pairs[node][to];
        for (uint32_t i = 0; net->nodes[to].phase != NODE_OPEN && i < pair->count; i++) {
            const tr_buf *buf = sim_at(pair, i)->msg.payload;
            uint32_t k = 0; /* one buffer may wait for several */
            while (k < count && seen[k] != buf)
                k++;
            if (buf != NULL && k == count)
                seen[count++] = buf;
        }
    }
    return count;
}

void tr_sim_set_slow(tr_sim_net *net, uint32_t node, uint32_t factor)
{
    net->nodes[node].slow = factor;
}

void tr_sim_cut(tr_sim_net *net, uint32_t a, uint32_t b, uint64_t until_ns)
{
    net->pairs[a][b].open_ns = latest(net->pairs[a][b].open_ns, until_ns);
    net->pairs[b][a].open_ns = latest(net->pairs[b][a].open_ns, until_ns);
}

uint64_t tr_sim_open_ns(const tr_sim_net *net, uint32_t a, uint32_t b)
{
    return latest(net->pairs[a][b].open_ns, net->pairs[b][a].open_ns);
}

bool tr_sim_reaches(const tr_sim_net *net, uint32_t a, uint32_t b)
{
    return net->nodes[a].phase == NODE_OPEN && net->nodes[b].phase == NODE_OPEN &&
           net->pairs[a][b].open_ns <= net->now_ns && net->pairs[b][a].open_ns <= net->now_ns;
}

/* Its peers will find out that a node is gone. */
static void sim_tell_end(tr_sim_net *net, uint32_t node, uint64_t notice_ns)
{
    for (uint32_t to = 0; to < TR_NODES_MAX; to++) {
        sim_pair *pair = &net->pairs[node][to];
        pair->notice_ns =
            notice_ns == UINT64_MAX ? UINT64_MAX : net->now_ns + sim_below(net, notice_ns + 1);
    }
}

void tr_sim_crash(tr_sim_net *net, uint32_t node)
{
    assert(net->nodes[node].phase == NODE_OPEN);
    net->nodes[node].phase = NODE_CRASHED;
    for (uint32_t to = 0; to < TR_NODES_MAX; to++) {
        sim_pair *pair = &net->pairs[node][to];
        sim_cut_queue(pair, (uint32_t)sim_below(net, pair->count + 1));
    }
    sim_own_payloads(net, node);
    sim_tell_end(net, node, net->config.notice_ns);
}

uint64_t tr_sim_hash(const tr_sim_net *net)
{
    return net->hash;
}

/* -- the transport -- */

static tr_sim_net *sim_find(const char *number)
{
    tr_sim_net *net = sim_nets;
    while (net != NULL && strcmp(net->options + strlen("net="), number) != 0)
        net = net->next;
    return net;
}

/* A node takes its place: what was under way from and to its predecessor is lost. */
static void sim_join(tr_sim_net *net, tr_transport *t)
{
    uint32_t self = t->config.node_index;
    for (uint32_t other = 0; other < TR_NODES_MAX; other++) {
        sim_pair *in = &net->pairs[other][self], *out = &net->pairs[self][other];
        sim_cut_queue(in, net->config.bug == TR_SIM_BUG_STALE ? 2 : 0);
        sim_cut_queue(out, net->config.bug == TR_SIM_BUG_STALE ? 2 : 0);
        out->notice_ns = UINT64_MAX;
        out->pool_ns = in->pool_ns = 0;
    }
    net->nodes[self].phase = NODE_OPEN;
    net->nodes[self].transport = t;
    net->nodes[self].slow = 1;
}

static tr_status sim_open(tr_transport **out, const tr_transport_config *config, tr_error *err)
{
    tr_option options[] = {{.key = "net"}};

    tr_status status = tr_transport_config_check(config, "sim", err);
    if (status == TR_OK)
        status = tr_options_parse(options, 1, "sim", config->options, err);
    if (status != TR_OK)
        return status;
    tr_sim_net *net = sim_find(options[0].value);
    if (net == NULL)
        return tr_fail(err, TR_E_INVALID, "sim options: net=%s, there is no such net",
                       options[0].value);
    node_phase phase = net->nodes[config->node_index].phase;
    if (phase == NODE_OPEN || phase == NODE_CRASHED)
        return tr_fail(err, TR_E_INVALID, "sim: node %u has already joined net %llu",
                       config->node_index, (unsigned long long)net->number);
    tr_transport *t = calloc(1, sizeof(*t));
    if (t == NULL)
        return tr_fail(err, TR_E_NOMEM, "sim: no memory for a transport");
    t->config = *config;
    t->config.options = NULL; /* borrowed for the call only */
    t->payload_max = tr_pool_capacity_max(config->pool);
    t->net = net;
    sim_join(net, t);
    *out = t;
    return TR_OK;
}

/* The net's memory is the test's. */
static uint64_t sim_bytes(uint32_t nodes_count)
{
    (void)nodes_count;
    return sizeof(tr_transport);
}

static tr_status sim_address(tr_transport *t, void *address, size_t size_max, size_t *size,
                             tr_error *err)
{
    return tr_address_write(address, size_max, size, "sim", t->config.node_index, &t->net->number,
                            sizeof(t->net->number), err);
}

static tr_status sim_connect(tr_transport *t, uint32_t node_index, const void *address, size_t size,
                             uint64_t deadline_ns, tr_error *err)
{
    const void *number = NULL;
    size_t number_size = 0;

    (void)deadline_ns; /* nothing here waits */
    tr_status status = tr_transport_peer_check(&t->config, "sim", node_index, err);
    if (status == TR_OK)
        status = tr_address_read(&number, &number_size, "sim", node_index, address, size, err);
    if (status != TR_OK)
        return status;
    if (number_size != sizeof(t->net->number) ||
        memcmp(number, &t->net->number, sizeof(t->net->number)) != 0)
        return tr_fail(err, TR_E_INVALID, "sim: the address of node %u is not from this net",
                       node_index);
    if (t->net->nodes[node_index].phase != NODE_OPEN)
        return tr_fail(err, TR_E_PEER, "sim: node %u is not there", node_index);
    t->connected[node_index] = true;
    return TR_OK;
}

static void sim_forget_peer(tr_transport *t, uint32_t node_index)
{
    sim_cut_queue(&t->net->pairs[t->config.node_index][node_index], 0);
    t->net->pairs[node_index][t->config.node_index].notice_ns = UINT64_MAX;
    t->connected[node_index] = t->down[node_index] = false;
}

/* The newest two messages of a pair change places; their times stay. */
static void sim_swap_last(sim_pair *pair)
{
    sim_message *a = sim_at(pair, pair->count - 1), *b = sim_at(pair, pair->count - 2);
    sim_message keep = *a;
    *a = *b;
    *b = keep;
    b->due_ns = a->due_ns;
    a->due_ns = keep.due_ns;
}

static void sim_push(tr_sim_net *net, uint32_t from, sim_pair *pair, const tr_msg *sealed)
{
    pair->last_due_ns = latest(pair->last_due_ns, net->now_ns + tr_sim_delay_ns(net, from));
    pair->count++;
    *sim_at(pair, pair->count - 1) = (sim_message){.msg = *sealed, .due_ns = pair->last_due_ns};
}

static tr_status sim_send(tr_transport *t, uint32_t node_index, const tr_msg *msg)
{
    tr_sim_net *net = t->net;
    uint32_t self = t->config.node_index;
    sim_pair *pair = &net->pairs[self][node_index];

    assert(node_index < t->config.nodes_count);
    assert(t->connected[node_index]);
    if (t->down[node_index] || sim_strikes(net, TR_SIM_BUG_DROP)) {
        tr_buf_unref(msg->payload);
        return t->down[node_index] ? TR_E_PEER : TR_OK;
    }
    if (pair->count >= net->config.room)
        return TR_E_AGAIN;
    if (pair->ring == NULL) {
        pair->ring = calloc(SIM_ROOM_MAX, sizeof(*pair->ring));
        assert(pair->ring != NULL);
    }
    tr_msg sealed = *msg;
    tr_msg_header_seal(&sealed.header);
    sim_push(net, self, pair, &sealed);
    if (pair->count < net->config.room && sim_strikes(net, TR_SIM_BUG_TWICE)) {
        if (sealed.payload != NULL)
            tr_buf_ref(sealed.payload);
        sim_push(net, self, pair, &sealed);
    }
    if (pair->count > 1 && sim_strikes(net, TR_SIM_BUG_SWAP))
        sim_swap_last(pair);
    return TR_OK;
}

/* Reports a peer's end, once; what was under way between us is lost. */
static void sim_set_down(tr_transport *t, uint32_t node_index, const char *reason)
{
    if (t->down[node_index])
        return;
    t->down[node_index] = true;
    sim_cut_queue(&t->net->pairs[node_index][t->config.node_index], 0);
    sim_cut_queue(&t->net->pairs[t->config.node_index][node_index], 0);
    t->config.peer_down(t->config.ctx, node_index, reason);
}

static void sim_note(tr_sim_net *net, uint32_t from, uint32_t to, const sim_message *m,
                     const void *bytes)
{
    uint64_t words[] = {net->hash,
                        net->now_ns,
                        from,
                        to,
                        XXH3_64bits(&m->msg.header, sizeof(m->msg.header)),
                        XXH3_64bits(bytes, bytes == NULL ? 0 : m->msg.header.payload_size)};
    net->hash = XXH3_64bits(words, sizeof(words));
}

/* Copies one message into the receiver's memory and hands it on. False: it waits for a buffer, or
 * the queue has been dropped. */
static bool sim_receive(tr_transport *t, uint32_t from, sim_pair *pair)
{
    tr_sim_net *net = t->net;
    const sim_message *m = sim_at(pair, 0);
    const uint8_t *bytes = m->msg.payload != NULL ? m->msg.payload->data : m->bytes;
    tr_msg msg = {.payload = NULL};
    tr_error err;

    if (tr_msg_header_read(&msg.header, &m->msg.header, sizeof(m->msg.header), t->payload_max,
                           &err) != TR_OK) {
        sim_set_down(t, from, err.text);
        return false;
    }
    if (msg.header.payload_size > 0) {
        msg.payload = tr_pool_take(t->config.pool, msg.header.payload_size);
        if (msg.payload == NULL) {
            pair->pool_ns = net->now_ns + SIM_POOL_WAIT_NS;
            return false;
        }
        memcpy(msg.payload->data, bytes, msg.header.payload_size);
        if (sim_strikes(net, TR_SIM_BUG_FLIP))
            msg.payload->data[sim_below(net, msg.header.payload_size)] ^=
                (uint8_t)(1u << sim_below(net, 8));
    }
    sim_note(net, from, t->config.node_index, m, bytes);
    t->config.deliver(t->config.ctx, from, &msg);
    return true;
}

static uint32_t sim_poll(tr_transport *t)
{
    tr_sim_net *net = t->net;
    uint32_t events = 0;

    for (uint32_t from = 0; from < t->config.nodes_count; from++) {
        sim_pair *pair = &net->pairs[from][t->config.node_index];
        if (from == t->config.node_index)
            continue;
        while (!t->down[from] && pair->count > 0 && sim_pair_next_ns(pair) <= net->now_ns &&
               sim_receive(t, from, pair)) {
            sim_pop(pair);
            events++;
        }
        if (!t->down[from] && pair->count == 0 && pair->notice_ns <= net->now_ns) {
            sim_set_down(t, from, net->nodes[from].phase == NODE_CLOSED ? "closed" : "crashed");
            events++;
        }
    }
    return events;
}

static const char *sim_path(tr_transport *t, uint32_t node_index)
{
    (void)t;
    (void)node_index;
    return "simulated";
}

static void sim_close(tr_transport *t)
{
    tr_sim_net *net = t->net;
    sim_node *self = &net->nodes[t->config.node_index];

    for (uint32_t from = 0; from < TR_NODES_MAX && net->config.bug != TR_SIM_BUG_STALE; from++)
        if (from != t->config.node_index)
            sim_cut_queue(&net->pairs[from][t->config.node_index], 0);
    sim_own_payloads(net, t->config.node_index);
    if (self->phase == NODE_OPEN)
        sim_tell_end(net, t->config.node_index, 0);
    self->phase = NODE_CLOSED;
    self->transport = NULL;
    free(t);
}

const tr_transport_ops tr_sim_ops = {
    .name = "sim",
    .bytes = sim_bytes,
    .open = sim_open,
    .address = sim_address,
    .connect = sim_connect,
    .forget = sim_forget_peer,
    .send = sim_send,
    .poll = sim_poll,
    .path = sim_path,
    .close = sim_close,
};
