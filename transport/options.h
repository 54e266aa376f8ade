/* options.h - what the transports share when they read their configuration. */
#ifndef TR_TRANSPORT_OPTIONS_H
#define TR_TRANSPORT_OPTIONS_H

#include "transport/transport.h"

#define TR_OPTION_SIZE 256

typedef struct {
    const char *key;            /* static storage */
    char value[TR_OPTION_SIZE]; /* "" when the text does not mention it */
} tr_option;

/* Reads "key=value,key=value" into the rows that have these keys. A part without '=' continues the
 * value before it, so that lists may contain commas: "tls=posix,cma,devices=lo".
 *
 *   options    [options_count], key set by the caller; value is set here
 *   transport  name for messages
 *   text       NULL is the same as ""
 *
 * errors  TR_E_INVALID: an unknown, doubled, empty or too long option, named. Thread: any. */
tr_status tr_options_parse(tr_option *options, uint32_t options_count, const char *transport,
                           const char *text, tr_error *err);

/* Checks the parts of a configuration that mean the same for every transport.
 * errors  TR_E_INVALID with the field, found, expected. Thread: any. */
tr_status tr_transport_config_check(const tr_transport_config *config, const char *transport,
                                    tr_error *err);

/* Checks that node_index, given to connect, is another node of the cluster. Thread: any. */
tr_status tr_transport_peer_check(const tr_transport_config *config, const char *transport,
                                  uint32_t node_index, tr_error *err);

#endif
