/* placement_values.h - readers of single values in a placement file, for its tables of fields.
 *
 * Each finds the YAML reader at a scalar, writes *target and leaves the scalar current; a wrong one
 * is refused with what was found and what was expected. Thread: that of the reader. */
#ifndef TR_CORE_PLACEMENT_VALUES_H
#define TR_CORE_PLACEMENT_VALUES_H

#include "core/yaml_reader.h"

/* Inclusive; last UINT32_MAX is "to the end". */
typedef struct {
    uint32_t first, last;
} tr_interval;

/* target: char [field->max] */
tr_status tr_value_name(tr_yaml *y, void *target, const tr_yaml_field *field);
tr_status tr_value_host(tr_yaml *y, void *target, const tr_yaml_field *field);
tr_status tr_value_url(tr_yaml *y, void *target, const tr_yaml_field *field); /* tcp:// or ipc:// */

/* target: uint64_t, above 0. "2 GiB", "1.5 GiB", "4096 B" */
tr_status tr_value_bytes(tr_yaml *y, void *target, const tr_yaml_field *field);

/* target: uint32_t in [field->min, field->max], in the unit of the name. "1500 ms", "2 s", "5 min"
 */
tr_status tr_value_ms(tr_yaml *y, void *target, const tr_yaml_field *field);
tr_status tr_value_seconds(tr_yaml *y, void *target, const tr_yaml_field *field);

/* target: tr_interval. "0-7", "5", "8-last", "all" */
tr_status tr_value_range(tr_yaml *y, void *target, const tr_yaml_field *field);

#endif
