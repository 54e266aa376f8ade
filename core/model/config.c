#include "core/model/config.h"

#include "core/model/json.h"
#include "core/model/names.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void tr_config_fail(tr_config *c, const char *key, const char *fmt, ...)
{
    char text[160];
    va_list args;

    if (c->status != TR_OK)
        return;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    c->status = tr_fail(&c->error, TR_E_INVALID, "%s: %s%.60s: %s", c->file, c->path, key, text);
}

void tr_config_init(tr_config *c, const char *file, json_t *object)
{
    *c = (tr_config){.status = TR_OK};
    snprintf(c->file, sizeof(c->file), "%s", file);
    if (object == NULL)
        return;
    assert(json_is_object(object));
    c->object = json_incref(object);
    c->unread = json_copy(object);
    if (c->unread == NULL)
        c->status = tr_fail(&c->error, TR_E_NOMEM, "%s: no memory for its keys", c->file);
}

void tr_config_init_gguf(tr_config *c, const tr_gguf *gguf, const tr_checkpoint *tensors,
                         const char *architecture)
{
    *c = (tr_config){.gguf = gguf, .tensors = tensors, .status = TR_OK, .read = json_object()};
    snprintf(c->file, sizeof(c->file), "%s", tr_gguf_name(gguf));
    snprintf(c->path, sizeof(c->path), "%s.", architecture);
    if (c->read == NULL)
        c->status = tr_fail(&c->error, TR_E_NOMEM, "%s: no memory for its keys", c->file);
}

void tr_config_teardown(tr_config *c)
{
    json_decref(c->object);
    json_decref(c->unread);
    json_decref(c->read);
    c->object = c->unread = c->read = NULL;
}

/* The value, which becomes known; NULL when it is absent or null. */
static const json_t *config_take(tr_config *c, const char *key)
{
    json_t *value = json_object_get(c->object, key);

    json_object_del(c->unread, key);
    return json_is_null(value) ? NULL : value;
}

/* The full key in a GGUF file. */
static const char *config_gguf_key(const tr_config *c, const char *key, char *full, size_t size)
{
    snprintf(full, size, "%s%s", c->path, key);
    return full;
}

/* Makes the key known; false when it is absent. */
static bool config_take_gguf(tr_config *c, const char *key, char *full, size_t size)
{
    config_gguf_key(c, key, full, size);
    if (!tr_gguf_has(c->gguf, full))
        return false;
    if (json_object_set_new(c->read, full, json_true()) != 0)
        tr_config_fail(c, key, "no memory to note that it was read");
    return true;
}

bool tr_config_has(const tr_config *c, const char *key)
{
    char full[TR_CONFIG_KEY_SIZE * 2];

    if (c->gguf != NULL)
        return tr_gguf_has(c->gguf, config_gguf_key(c, key, full, sizeof(full)));
    const json_t *value = json_object_get(c->object, key);
    return value != NULL && !json_is_null(value);
}

bool tr_config_has_tensor(const tr_config *c, const char *pattern, uint32_t layer)
{
    const char *mark = strstr(pattern, "{l}");
    char name[TR_CONFIG_KEY_SIZE];

    assert(mark != NULL);
    snprintf(name, sizeof(name), "%.*s%u%s", (int)(mark - pattern), pattern, layer, mark + 3);
    return c->tensors != NULL && tr_checkpoint_find(c->tensors, name) != TR_NAME_NONE;
}

void tr_config_child(tr_config *child, tr_config *parent, const char *key)
{
    const json_t *value = config_take(parent, key);

    assert(parent->gguf == NULL);
    if (value != NULL && !json_is_object(value)) {
        tr_config_fail(parent, key, "%s, expected an object", tr_json_kind(value));
        value = NULL;
    }
    tr_config_init(child, parent->file, (json_t *)(uintptr_t)value);
    snprintf(child->path, sizeof(child->path), "%.40s%.60s.", parent->path, key);
}

void tr_config_finish_child(tr_config *child, tr_config *parent, const char *const *harmless)
{
    tr_error error;

    tr_status status = tr_config_finish(child, harmless, &error);
    if (status != TR_OK && parent->status == TR_OK) {
        parent->status = status;
        parent->error = error;
    }
    tr_config_teardown(child);
}

/* -- values -- */

static uint32_t config_range(tr_config *c, const char *key, json_int_t value, uint32_t fallback,
                             uint32_t min, uint32_t max)
{
    if (value < (json_int_t)min || value > (json_int_t)max) {
        tr_config_fail(c, key, "found %" JSON_INTEGER_FORMAT ", expected %u..%u", value, min, max);
        return fallback;
    }
    return (uint32_t)value;
}

static uint32_t config_u32(tr_config *c, const char *key, bool required, uint32_t fallback,
                           uint32_t min, uint32_t max)
{
    char full[TR_CONFIG_KEY_SIZE * 2];
    uint64_t number = 0;

    if (c->gguf != NULL) {
        if (config_take_gguf(c, key, full, sizeof(full))) {
            tr_error error;
            if (tr_gguf_u64(c->gguf, full, &number, &error) == TR_OK)
                return config_range(c, key, (json_int_t)number, fallback, min, max);
            if (c->status == TR_OK) {
                c->status = error.code;
                c->error = error;
            }
            return fallback;
        }
    } else {
        const json_t *value = config_take(c, key);
        if (json_is_integer(value))
            return config_range(c, key, json_integer_value(value), fallback, min, max);
        if (value != NULL) {
            tr_config_fail(c, key, "%s, expected an integer in %u..%u", tr_json_kind(value), min,
                           max);
            return fallback;
        }
    }
    if (required)
        tr_config_fail(c, key, "absent, expected an integer in %u..%u", min, max);
    return fallback;
}

uint32_t tr_config_u32(tr_config *c, const char *key, uint32_t min, uint32_t max)
{
    return config_u32(c, key, true, min, min, max);
}

uint32_t tr_config_u32_or(tr_config *c, const char *key, uint32_t fallback, uint32_t min,
                          uint32_t max)
{
    return config_u32(c, key, false, fallback, min, max);
}

static double config_number(tr_config *c, const char *key, bool required, double fallback,
                            double min, double max)
{
    char full[TR_CONFIG_KEY_SIZE * 2];
    double number = NAN;
    bool present;

    if (c->gguf != NULL) {
        tr_error error;
        present = config_take_gguf(c, key, full, sizeof(full));
        if (present && tr_gguf_f64(c->gguf, full, &number, &error) != TR_OK) {
            tr_config_fail(c, key, "expected a finite number");
            return fallback;
        }
    } else {
        const json_t *value = config_take(c, key);
        present = value != NULL;
        if (present && !json_is_number(value)) {
            tr_config_fail(c, key, "%s, expected a number", tr_json_kind(value));
            return fallback;
        }
        number = json_number_value(value);
    }
    if (!present) {
        if (required)
            tr_config_fail(c, key, "absent, expected a number in %g..%g", min, max);
        return fallback;
    }
    if (!(number >= min && number <= max)) {
        tr_config_fail(c, key, "found %g, expected %g..%g", number, min, max);
        return fallback;
    }
    return number;
}

double tr_config_number(tr_config *c, const char *key, double min, double max)
{
    return config_number(c, key, true, min, min, max);
}

double tr_config_number_or(tr_config *c, const char *key, double fallback, double min, double max)
{
    return config_number(c, key, false, fallback, min, max);
}

bool tr_config_bool_or(tr_config *c, const char *key, bool fallback)
{
    char full[TR_CONFIG_KEY_SIZE * 2];
    bool truth = fallback;

    if (c->gguf != NULL) {
        if (config_take_gguf(c, key, full, sizeof(full)) &&
            tr_gguf_bool(c->gguf, full, &truth, NULL) != TR_OK)
            tr_config_fail(c, key, "expected a truth value");
        return truth;
    }
    const json_t *value = config_take(c, key);
    if (value == NULL)
        return fallback;
    if (!json_is_boolean(value)) {
        tr_config_fail(c, key, "%s, expected true or false", tr_json_kind(value));
        return fallback;
    }
    return json_is_true(value);
}

uint32_t tr_config_element(tr_config *c, const char *key, uint32_t index, uint32_t count,
                           uint32_t fallback, uint32_t min, uint32_t max)
{
    char full[TR_CONFIG_KEY_SIZE * 2];
    tr_gguf_array array;
    json_int_t value;

    assert(index < count);
    if (c->gguf != NULL) {
        config_gguf_key(c, key, full, sizeof(full));
        if (tr_gguf_get_array(c->gguf, full, TR_GGUF_I32, &array, NULL) != TR_OK)
            return tr_config_u32_or(c, key, fallback, min, max);
        (void)config_take_gguf(c, key, full, sizeof(full));
        if (array.count != count) {
            tr_config_fail(c, key, "%llu elements, expected %u", (unsigned long long)array.count,
                           count);
            return fallback;
        }
        value = tr_gguf_array_i64(&array, index);
    } else {
        if (!json_is_array(json_object_get(c->object, key)))
            return tr_config_u32_or(c, key, fallback, min, max);
        const json_t *list = config_take(c, key);
        const json_t *element = json_array_get(list, index);
        if (json_array_size(list) != count || !json_is_integer(element)) {
            tr_config_fail(c, key, "a list of %zu with %s at %u, expected %u integers",
                           json_array_size(list), tr_json_kind(element), index, count);
            return fallback;
        }
        value = json_integer_value(element);
    }
    return config_range(c, key, value, fallback, min, max);
}

const json_t *tr_config_list(tr_config *c, const char *key)
{
    assert(c->gguf == NULL);
    const json_t *value = config_take(c, key);
    if (value != NULL && !json_is_array(value)) {
        tr_config_fail(c, key, "%s, expected a list", tr_json_kind(value));
        return NULL;
    }
    return value;
}

uint32_t tr_config_choice(tr_config *c, const char *key, const char *const *texts,
                          const char *fallback)
{
    char full[TR_CONFIG_KEY_SIZE * 2];
    const char *found = fallback;
    size_t size = strlen(fallback);
    char expected[96] = "";

    if (c->gguf != NULL) {
        if (config_take_gguf(c, key, full, sizeof(full)) &&
            tr_gguf_text(c->gguf, full, &found, &size, NULL) != TR_OK)
            tr_config_fail(c, key, "expected a string");
    } else {
        const json_t *value = config_take(c, key);
        if (json_is_string(value)) {
            found = json_string_value(value);
            size = json_string_length(value);
        } else if (value != NULL) {
            tr_config_fail(c, key, "%s, expected a string", tr_json_kind(value));
            return 0;
        }
    }
    for (uint32_t i = 0; texts[i] != NULL; i++) {
        if (strlen(texts[i]) == size && memcmp(texts[i], found, size) == 0)
            return i;
        size_t used = strlen(expected);
        snprintf(expected + used, sizeof(expected) - used, "%s%s", i > 0 ? " or " : "", texts[i]);
    }
    tr_config_fail(c, key, "found \"%.*s\", expected %s", (int)(size < 40 ? size : 40), found,
                   expected);
    return 0;
}

void tr_config_only_bool(tr_config *c, const char *key, bool value, const char *reason)
{
    if (tr_config_bool_or(c, key, value) != value)
        tr_config_fail(c, key, "found %s, expected %s: %s", value ? "false" : "true",
                       value ? "true" : "false", reason);
}

/* -- the end -- */

static bool config_is_harmless(const char *const *harmless, const char *key, size_t size)
{
    for (; harmless != NULL && *harmless != NULL; harmless++)
        if (strlen(*harmless) == size && memcmp(*harmless, key, size) == 0)
            return true;
    return false;
}

static void config_refuse(tr_config *c, const char *key, size_t size)
{
    char text[64];

    snprintf(text, sizeof(text), "%.*s", (int)(size < 60 ? size : 60), key);
    tr_config_fail(c, text,
                   "a setting that this family does not know; it may change what the model "
                   "computes, so it is not ignored");
}

tr_status tr_config_finish(tr_config *c, const char *const *harmless, tr_error *err)
{
    const char *key;
    json_t *value;
    size_t prefix = strlen(c->path);

    json_object_foreach(c->unread, key, value) if (!json_is_null(value) &&
                                                   !config_is_harmless(harmless, key, strlen(key)))
        config_refuse(c, key, strlen(key));
    for (uint32_t i = 0; c->gguf != NULL && i < tr_gguf_keys_count(c->gguf); i++) {
        size_t size;

        tr_gguf_key(c->gguf, i, &key, &size);
        if (size <= prefix || memcmp(key, c->path, prefix) != 0)
            continue;
        if (json_object_getn(c->read, key, size) == NULL &&
            !config_is_harmless(harmless, key + prefix, size - prefix))
            config_refuse(c, key + prefix, size - prefix);
    }
    if (c->status != TR_OK && err != NULL)
        *err = c->error;
    return c->status;
}
