/* fake_client.h - a cluster that answers from a script, in place of actors/client.c. */
#ifndef TR_TESTS_API_FAKE_CLIENT_H
#define TR_TESTS_API_FAKE_CLIENT_H

#include "actors/client.h"

/* What happens to every request that is submitted while the script is set. */
typedef struct {
    tr_status submit;      /* TR_OK, or what tr_client_submit returns, with a text */
    const int32_t *tokens; /* [tokens_count] generated; borrowed while it is set */
    uint32_t tokens_count;
    uint32_t repeats;        /* the tokens are given this many times; 0 stands for 1 */
    bool hold;               /* then nothing more comes until the request is cancelled */
    tr_event_kind end;       /* otherwise FINISHED or FAILED */
    tr_finish_reason finish; /* FINISHED; tokens_max of the request is kept in any case */
    tr_status failure;       /* FAILED */
    bool refused;            /* FAILED before it began */
} fake_script;

/* Sets the script and forgets all requests and counters. Thread: any. */
void fake_client_set(const fake_script *script);

typedef struct {
    uint32_t submitted;
    uint32_t canceled;
    uint32_t active; /* neither finished nor cancelled */
    uint64_t events; /* given out */
    tr_request last; /* as it was submitted; tokens points to last_tokens */
    int32_t last_tokens[1024];
} fake_state;

void fake_client_get(fake_state *out);

#endif
