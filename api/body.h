/* body.h - the JSON body of a request, checked before and after jansson reads it. */
#ifndef TR_API_BODY_H
#define TR_API_BODY_H

#include "api/api_error.h"

#include <jansson.h>
#include <stddef.h>

#define TR_BODY_DEPTH_MAX 64 /* nested arrays and objects */

/* Reads a JSON object. Depth and number of values are counted before anything is allocated: a
 * value of two bytes costs jansson a hundred.
 *
 *   values_max  most values in the text
 *
 * Returns a new reference, or NULL and *err with status 400. Duplicate keys are refused. */
json_t *tr_body_read(const char *body, size_t size, size_t values_max, tr_api_error *err);

/* "a string", "an integer", ... for messages. */
const char *tr_json_type_text(const json_t *value);

#endif
