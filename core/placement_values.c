#include "core/placement_values.h"

#include <stdbool.h>
#include <string.h>

#define COUNT(array) ((uint32_t)(sizeof(array) / sizeof((array)[0])))

/* A decimal number without a sign at the start of text; *end is behind it. */
static bool parse_number(const char *text, const char **end, uint64_t *out)
{
    uint64_t value = 0;
    size_t digits = strspn(text, "0123456789");

    if (digits == 0 || digits > 18)
        return false;
    for (size_t i = 0; i < digits; i++)
        value = value * 10 + (uint64_t)(text[i] - '0');
    *end = text + digits;
    *out = value;
    return true;
}

tr_status tr_value_name(tr_yaml *y, void *target, const tr_yaml_field *field)
{
    tr_status status = tr_yaml_text(y, target, field);
    const char *name = target;

    if (status == TR_OK && name[strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                             "0123456789._-")] != '\0')
        return tr_yaml_wrong(y, "a name of letters, digits, '.', '_' and '-'");
    return status;
}

tr_status tr_value_host(tr_yaml *y, void *target, const tr_yaml_field *field)
{
    tr_status status = tr_yaml_text(y, target, field);
    const char *host = target;

    if (status == TR_OK && host[strcspn(host, " /@[]\"'\\")] != '\0')
        return tr_yaml_wrong(y, "a host name or an address");
    return status;
}

tr_status tr_value_url(tr_yaml *y, void *target, const tr_yaml_field *field)
{
    static const char *const schemes[] = {"tcp://", "ipc://"};
    tr_status status = tr_yaml_text(y, target, field);
    const char *url = target;
    uint64_t number = 0;

    if (status != TR_OK)
        return status;
    for (uint32_t i = 0; i < COUNT(schemes); i++) {
        size_t size = strlen(schemes[i]);
        const char *rest = url + size;
        if (strncmp(url, schemes[i], size) != 0 || rest[0] == '\0')
            continue;
        if (strcmp(schemes[i], "ipc://") == 0)
            return TR_OK;
        /* A host without a port is the usual slip. */
        const char *port = strrchr(rest, ':');
        if (port != NULL && port != rest && parse_number(port + 1, &port, &number) &&
            port[0] == '\0' && number >= 1 && number <= 65535)
            return TR_OK;
    }
    return tr_yaml_wrong(y, "a URL such as tcp://127.0.0.1:7701 or ipc:///tmp/troupe.sock");
}

/* "2 GiB", "1.5GiB", "4096 B" */
static bool parse_bytes(const char *text, uint64_t *out)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    uint64_t whole = 0, fraction = 0, scale = 1, bytes = 0;

    if (!parse_number(text, &text, &whole))
        return false;
    if (text[0] == '.') {
        const char *digits = text + 1;
        if (!parse_number(digits, &text, &fraction) || text - digits > 3)
            return false;
        for (; digits < text; digits++)
            scale *= 10;
    }
    text += strspn(text, " ");
    for (uint32_t i = 0; i < COUNT(units); i++) {
        uint64_t unit = 1ull << (10 * i);
        if (strcmp(text, units[i]) != 0)
            continue;
        /* fraction < 1000 and unit <= 2^40: no overflow */
        if (__builtin_mul_overflow(whole, unit, &bytes))
            return false;
        return !__builtin_add_overflow(bytes, fraction * unit / scale, out) && *out > 0;
    }
    return false;
}

tr_status tr_value_bytes(tr_yaml *y, void *target, const tr_yaml_field *field)
{
    (void)field;
    const char *text = tr_yaml_scalar(y, "a size such as 2 GiB");
    if (text == NULL)
        return TR_E_INVALID;
    uint64_t bytes = 0;
    if (!parse_bytes(text, &bytes))
        return tr_yaml_wrong(y, "a size such as 2 GiB or 512 MiB");
    *(uint64_t *)target = bytes;
    return TR_OK;
}

/* "1500 ms", "2 s", "5 min" */
static bool parse_duration_ms(const char *text, uint64_t *out)
{
    static const struct {
        const char *name;
        uint64_t ms;
    } units[] = {{"ms", 1}, {"s", 1000}, {"min", 60000}};
    uint64_t value = 0;

    if (!parse_number(text, &text, &value) || value > UINT32_MAX)
        return false;
    text += strspn(text, " ");
    for (uint32_t i = 0; i < COUNT(units); i++) {
        if (strcmp(text, units[i].name) == 0) {
            *out = value * units[i].ms;
            return true;
        }
    }
    return false;
}

tr_status tr_value_ms(tr_yaml *y, void *target, const tr_yaml_field *field)
{
    const char *text = tr_yaml_scalar(y, "a duration such as 1500 ms");
    if (text == NULL)
        return TR_E_INVALID;
    uint64_t ms = 0;
    if (!parse_duration_ms(text, &ms) || ms < field->min || ms > field->max)
        return tr_yaml_wrong(y, "a duration from %llu ms to %llu ms such as 1500 ms or 2 s",
                             (unsigned long long)field->min, (unsigned long long)field->max);
    *(uint32_t *)target = (uint32_t)ms;
    return TR_OK;
}

tr_status tr_value_seconds(tr_yaml *y, void *target, const tr_yaml_field *field)
{
    const char *text = tr_yaml_scalar(y, "a duration such as 120 s");
    if (text == NULL)
        return TR_E_INVALID;
    uint64_t ms = 0;
    if (!parse_duration_ms(text, &ms) || ms % 1000 != 0 || ms / 1000 < field->min ||
        ms / 1000 > field->max)
        return tr_yaml_wrong(y, "a duration in whole seconds from %llu s to %llu s",
                             (unsigned long long)field->min, (unsigned long long)field->max);
    *(uint32_t *)target = (uint32_t)(ms / 1000);
    return TR_OK;
}

/* "0-7", "5", "8-last", "all" */
static bool parse_range(const char *text, tr_interval *out)
{
    uint64_t first = 0, last = 0;

    if (strcmp(text, "all") == 0) {
        *out = (tr_interval){0, UINT32_MAX};
        return true;
    }
    if (!parse_number(text, &text, &first))
        return false;
    last = first;
    if (strcmp(text, "-last") == 0) {
        last = UINT32_MAX;
        text += strlen("-last");
    } else if (text[0] == '-' && (!parse_number(text + 1, &text, &last) || last >= UINT32_MAX)) {
        return false;
    }
    if (text[0] != '\0' || first >= UINT32_MAX || first > last)
        return false;
    *out = (tr_interval){(uint32_t)first, (uint32_t)last};
    return true;
}

tr_status tr_value_range(tr_yaml *y, void *target, const tr_yaml_field *field)
{
    (void)field;
    const char *text = tr_yaml_scalar(y, "a range such as 0-7");
    if (text == NULL)
        return TR_E_INVALID;
    if (!parse_range(text, target))
        return tr_yaml_wrong(y, "a range such as 0-7, 5, 8-last or all");
    return TR_OK;
}
