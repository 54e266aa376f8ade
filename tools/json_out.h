/* json_out.h - results as JSON, whatever they are made of. */
#ifndef TR_TOOLS_JSON_OUT_H
#define TR_TOOLS_JSON_OUT_H

#include "core/error.h"

#include <jansson.h>
#include <stddef.h>

/* Text that may come from anywhere: a node, a file, the command line. What is not UTF-8 cannot be
 * JSON; every byte of such a text that is not ASCII becomes "?". NULL: no memory. */
json_t *tr_json_out_text(const char *text, size_t size);

/* Prints a document and a line break on standard output, and frees it.
 *
 *   document  NULL when there was no memory to make it
 *   flags     jansson's: JSON_INDENT(2)
 *
 * errors  TR_E_NOMEM */
tr_status tr_json_out_print(json_t *document, size_t flags, tr_error *err);

#endif
