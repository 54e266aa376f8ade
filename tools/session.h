/* session.h - a cluster for the length of one command: one process, or the nodes of a file. */
#ifndef TR_TOOLS_SESSION_H
#define TR_TOOLS_SESSION_H

#include "actors/cluster.h"
#include "core/model/tokenizer.h"
#include "tools/children.h"
#include "tools/cli.h"

typedef struct {
    tr_placement placement;
    tr_cluster *clusters[TR_NODES_MAX]; /* nodes of this process: the first, or all over loop */
    tr_children children;               /* the other nodes */
    tr_client *client;                  /* of the first node */
    uint32_t context_max;
} tr_session;

/* Options that every command with a session has; put them first in its table. */
#define TR_SESSION_OPTIONS                                                                       \
    {"placement", 0, "FILE.yaml", "run on the nodes of this file (its model is not looked at)"}, \
        {"threads", 0, "N", "kernel threads of a single node (default 1)"},                      \
        {"kernels", 0, "NAME", "cpu, cpu-avx512, cpu-avx2, cpu-neon, cpu-portable (default cpu)"}, \
        {"activations", 0, "NAME", "f32 (default), or nvfp4 where weights have scales for it"}

/* Opens model_path as --placement, --threads, --kernels and --activations say, and waits until it
 * serves. Prints nothing; tr_session_close frees everything, also after a failure. */
tr_status tr_session_open(tr_session *session, const char *model_path, const tr_cli_args *args,
                          tr_error *err);
void tr_session_close(tr_session *session);

/* The next event of the session's client. Fails when nothing has come for 120 s, or when a node of
 * the session has ended. */
tr_status tr_session_event(tr_session *session, tr_event *out, tr_error *err);

/* Token ids in decimal, white space between. *ids is malloc'ed; the caller frees it.
 * errors  TR_E_INVALID with file, place, found */
tr_status tr_read_ids(const char *path, int32_t **ids, uint32_t *count, tr_error *err);

/* A whole file, malloc'ed, with a zero byte behind it. errors TR_E_INVALID with the path. */
tr_status tr_read_file(const char *path, char **text, size_t *size, tr_error *err);

/* Tokenizes a text as it is (special tokens in it are text), behind BOS where the tokenizer asks
 * for one. *ids is malloc'ed; the caller frees it. */
tr_status tr_encode_text(const tr_tokenizer *tokenizer, const char *text, size_t size,
                         int32_t **ids, uint32_t *count, tr_error *err);

#endif
