/* sim.h - a network on virtual time between nodes of one thread, for tests.
 *
 * One tr_sim_net carries the messages of one cluster. Its clock moves when its owner says so, and
 * everything that chance decides comes from one seed: the same calls give the same deliveries.
 *
 * It keeps the contract of transport.h: reliable and in order between two nodes while both live.
 * What differs between real networks is what it varies: delays, how pairs overtake one another,
 * room for messages, nodes that are slow, cut off, die in the middle of a stream, or come back. It
 * can also break the contract (tr_sim_bug), so that a simulator can prove that it would notice.
 *
 * A node belongs to the net through the transport's options "net=NUMBER" (tr_sim_net_options). */
#ifndef TR_TRANSPORT_SIM_SIM_H
#define TR_TRANSPORT_SIM_SIM_H

#include "core/runtime.h"
#include "transport/transport.h"

#include <stdbool.h>

typedef struct tr_sim_net tr_sim_net;

/* What goes wrong on purpose, about once in bug_one_in messages. */
typedef enum {
    TR_SIM_BUG_NONE,
    TR_SIM_BUG_DROP,  /* a message is lost */
    TR_SIM_BUG_TWICE, /* a message comes twice */
    TR_SIM_BUG_SWAP,  /* two messages of one pair change places */
    TR_SIM_BUG_FLIP,  /* a bit of a payload is wrong */
    TR_SIM_BUG_STALE, /* a message to a node that ended reaches the one that takes its place */
    TR_SIM_BUGS_COUNT
} tr_sim_bug;

typedef struct {
    uint64_t seed;
    uint64_t delay_ns;     /* of most messages, halved or doubled by chance */
    uint64_t delay_max_ns; /* of one message in 16: anything up to this */
    uint32_t room;         /* messages of one pair that may be under way; more are TR_E_AGAIN */
    uint64_t notice_ns;    /* after which a peer's crash is noticed, at most; UINT64_MAX: never */
    tr_sim_bug bug;
    uint32_t bug_one_in;
} tr_sim_config;

tr_status tr_sim_net_open(tr_sim_net **out, const tr_sim_config *config, tr_error *err);

/* All transports on it must be closed. */
void tr_sim_net_close(tr_sim_net *net);

/* "net=7"; borrowed from the net. */
const char *tr_sim_net_options(const tr_sim_net *net);

uint64_t tr_sim_now_ns(const tr_sim_net *net);

/* Moves the clock; never back. */
void tr_sim_set_now_ns(tr_sim_net *net, uint64_t now_ns);

/* When the next poll of a node has something to do; UINT64_MAX: not unless something is sent. */
uint64_t tr_sim_next_ns(const tr_sim_net *net, uint32_t node);

/* Messages under way to nodes that live. */
uint32_t tr_sim_under_way(const tr_sim_net *net);

/* Buffers of a node that wait for peers which are gone, as far as it has not noticed. */
uint32_t tr_sim_stranded(const tr_sim_net *net, uint32_t node);

/* Delays of what a node sends from now on are multiplied; 1: as usual. */
void tr_sim_set_slow(tr_sim_net *net, uint32_t node, uint32_t factor);

/* Nothing passes between two nodes, either way, before until_ns; then all of it does. */
void tr_sim_cut(tr_sim_net *net, uint32_t a, uint32_t b, uint64_t until_ns);

/* From when on something passes between them again; 0 when it does. */
uint64_t tr_sim_open_ns(const tr_sim_net *net, uint32_t a, uint32_t b);

/* How long something that a node sends now takes: draws from the net's chance. */
uint64_t tr_sim_delay_ns(tr_sim_net *net, uint32_t from);

/* Whether a question from a to b and its answer would get through now. */
bool tr_sim_reaches(const tr_sim_net *net, uint32_t a, uint32_t b);

/* A node dies: of what it sent a part by chance still arrives, what was sent to it is lost. Its
 * transport must be closed next, and says no goodbye. */
void tr_sim_crash(tr_sim_net *net, uint32_t node);

/* Changes with every delivery: its time, pair, header and payload. */
uint64_t tr_sim_hash(const tr_sim_net *net);

extern const tr_transport_ops tr_sim_ops;

#endif
