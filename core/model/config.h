/* config.h - reads the settings of a model, and notices those that nobody read.
 *
 * The settings are a JSON object (config.json) or the metadata of a GGUF file; the functions are
 * the same. The first failure sticks: later calls return their fallback, and tr_config_finish
 * returns it at the end.
 *
 * Reading a key makes it known. tr_config_finish refuses every key that is neither known nor on a
 * list of harmless ones, because a setting that we do not know may change what the model computes.
 */
#ifndef TR_CORE_MODEL_CONFIG_H
#define TR_CORE_MODEL_CONFIG_H

#include "core/error.h"
#include "core/model/checkpoint.h"
#include "core/model/gguf.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#define TR_CONFIG_KEY_SIZE 128

typedef struct {
    char file[128];                /* for errors */
    char path[TR_CONFIG_KEY_SIZE]; /* "" or the keys that lead here, "linear_attn_config." */
    json_t *object;                /* counts; NULL for GGUF and for an absent child */
    json_t *unread;                /* owns; what is left of object */
    const tr_gguf *gguf;           /* borrows; NULL for JSON */
    json_t *read;                  /* owns; keys of gguf that were read */
    const tr_checkpoint *tensors;  /* borrows; GGUF: which of two sets of tensors it has; or NULL */
    tr_status status;
    tr_error error;
} tr_config;

/* From a JSON object, of which it takes a reference. */
void tr_config_init(tr_config *config, const char *file, json_t *object);

/* From the metadata of a GGUF file: keys that begin with "architecture.". */
void tr_config_init_gguf(tr_config *config, const tr_gguf *gguf, const tr_checkpoint *tensors,
                         const char *architecture);
void tr_config_teardown(tr_config *config);

/* The object at key, to be read, finished and torn down like its parent; without keys when it is
 * absent or null. Failures of a child become the parent's at tr_config_finish_child. */
void tr_config_child(tr_config *child, tr_config *parent, const char *key);
void tr_config_finish_child(tr_config *child, tr_config *parent, const char *const *harmless);

/* Present and not null. Does not make the key known. */
bool tr_config_has(const tr_config *config, const char *key);

/* Whether there is a tensor of this name in a layer; "{l}" stands for the layer's number. For what
 * the settings of a GGUF file do not say. */
bool tr_config_has_tensor(const tr_config *config, const char *pattern, uint32_t layer);

/* The value of key, which must be there, in [min, max]. */
uint32_t tr_config_u32(tr_config *config, const char *key, uint32_t min, uint32_t max);
double tr_config_number(tr_config *config, const char *key, double min, double max);

/* The same, or fallback when the key is absent or null. */
uint32_t tr_config_u32_or(tr_config *config, const char *key, uint32_t fallback, uint32_t min,
                          uint32_t max);
double tr_config_number_or(tr_config *config, const char *key, double fallback, double min,
                           double max);
bool tr_config_bool_or(tr_config *config, const char *key, bool fallback);

/* Element index of a list with count elements, or the value itself when it is no list (GGUF: a
 * scalar stands for all layers). */
uint32_t tr_config_element(tr_config *config, const char *key, uint32_t index, uint32_t count,
                           uint32_t fallback, uint32_t min, uint32_t max);

/* The list at key, borrowed, or NULL when it is absent or null. JSON only. */
const json_t *tr_config_list(tr_config *config, const char *key);

/* Whether the text at key, or fallback when it is absent or null, is one of the texts (a list that
 * ends with NULL); anything else is a failure that names them. Returns the index, 0 on failure. */
uint32_t tr_config_choice(tr_config *config, const char *key, const char *const *texts,
                          const char *fallback);

/* A setting whose other values we cannot compute: fails unless it is absent, null, or the value. */
void tr_config_only_bool(tr_config *config, const char *key, bool value, const char *reason);

/* Records a failure of the caller's own: "file: path.key: <text>". The first one counts. */
void tr_config_fail(tr_config *config, const char *key, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Ends reading: the first failure, or the first key that nobody read.
 *   harmless  keys without influence on what is computed; ends with NULL; may be NULL */
tr_status tr_config_finish(tr_config *config, const char *const *harmless, tr_error *err);

#endif
