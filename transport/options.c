/* options.c - reads the option text of the placement file and checks configurations. */
#include "transport/options.h"

#include "core/runtime.h"

#include <stdio.h>
#include <string.h>

static tr_option *options_find(tr_option *options, uint32_t count, const char *key, size_t size)
{
    for (uint32_t i = 0; i < count; i++)
        if (strlen(options[i].key) == size && memcmp(options[i].key, key, size) == 0)
            return &options[i];
    return NULL;
}

static tr_status options_fail_unknown(const tr_option *options, uint32_t count,
                                      const char *transport, const char *key, size_t size,
                                      tr_error *err)
{
    char known[128] = "none";
    size_t used = 0;

    for (uint32_t i = 0; i < count && used < sizeof(known); i++)
        used += (size_t)snprintf(known + used, sizeof(known) - used, "%s%s", i > 0 ? ", " : "",
                                 options[i].key);
    return tr_fail(err, TR_E_INVALID, "%s options: found key \"%.*s\", known keys: %s", transport,
                   (int)(size < 64 ? size : 64), key, known);
}

/* Appends one part to the option's value, after a comma when it continues a list. */
static tr_status options_append(tr_option *option, const char *transport, const char *part,
                                size_t size, tr_error *err)
{
    size_t used = strlen(option->value);
    size_t comma = used > 0 ? 1 : 0;

    if (used + comma + size >= sizeof(option->value))
        return tr_fail(err, TR_E_INVALID, "%s options: %s is longer than %zu bytes", transport,
                       option->key, sizeof(option->value) - 1);
    if (comma > 0)
        option->value[used] = ',';
    memcpy(option->value + used + comma, part, size);
    option->value[used + comma + size] = '\0';
    return TR_OK;
}

tr_status tr_options_parse(tr_option *options, uint32_t options_count, const char *transport,
                           const char *text, tr_error *err)
{
    tr_option *current = NULL;

    for (uint32_t i = 0; i < options_count; i++)
        options[i].value[0] = '\0';
    if (text == NULL)
        text = "";

    while (*text != '\0') {
        size_t size = strcspn(text, ",");
        const char *part = text;
        const char *equals = memchr(part, '=', size);

        text += size + (text[size] == ',' ? 1 : 0);
        if (equals != NULL) {
            size_t key_size = (size_t)(equals - part);

            current = options_find(options, options_count, part, key_size);
            if (current == NULL)
                return options_fail_unknown(options, options_count, transport, part, key_size, err);
            if (current->value[0] != '\0')
                return tr_fail(err, TR_E_INVALID, "%s options: %s is given twice", transport,
                               current->key);
            size -= key_size + 1;
            part = equals + 1;
        }
        if (current == NULL || size == 0)
            return tr_fail(err, TR_E_INVALID, "%s options: found \"%.64s\", expected key=value",
                           transport, part);
        tr_status status = options_append(current, transport, part, size, err);
        if (status != TR_OK)
            return status;
    }
    return TR_OK;
}

tr_status tr_transport_config_check(const tr_transport_config *config, const char *transport,
                                    tr_error *err)
{
    if (config->nodes_count == 0 || config->nodes_count > TR_NODES_MAX)
        return tr_fail(err, TR_E_INVALID, "%s: nodes_count is %u, expected 1..%u", transport,
                       config->nodes_count, TR_NODES_MAX);
    if (config->node_index >= config->nodes_count)
        return tr_fail(err, TR_E_INVALID, "%s: node_index is %u, expected less than %u", transport,
                       config->node_index, config->nodes_count);
    if (config->pool == NULL || config->deliver == NULL || config->peer_down == NULL)
        return tr_fail(err, TR_E_INVALID, "%s: pool, deliver and peer_down must be set", transport);
    return TR_OK;
}

tr_status tr_transport_peer_check(const tr_transport_config *config, const char *transport,
                                  uint32_t node_index, tr_error *err)
{
    if (node_index >= config->nodes_count || node_index == config->node_index)
        return tr_fail(err, TR_E_INVALID, "%s: node %u is not a peer of node %u in a cluster of %u",
                       transport, node_index, config->node_index, config->nodes_count);
    return TR_OK;
}
