/* jinja_value.h - the values that a template computes with, and their memory.
 *
 * A value is what the same thing is in Python: strings are sequences of characters, True equals 1,
 * dicts keep their order, lists are compared by content. Templates cannot change a value once it
 * is made, so values are shared freely; all of them live in one arena that goes when the run ends.
 *
 * Provenance: each byte of a string knows whether it came from the input (the variables that the
 * caller gave) or from the template. It follows the byte through every operation, because text
 * from the input must never be read as a special token. Numbers and containers carry one bit for
 * what they turn into when they are printed.
 *
 * Names: tj_ is internal to the jinja_*.c files and chat_template.c.
 * A function that returns bool and takes a tj_run returns false after an error, which then stands
 * in the run; the caller returns at once. */
#ifndef TR_CORE_MODEL_JINJA_VALUE_H
#define TR_CORE_MODEL_JINJA_VALUE_H

#include "core/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Limits of one run. A chat of a million tokens is about 4 MiB of text. */
#define TJ_STRING_BYTES_MAX ((size_t)16 << 20)  /* also of the output */
#define TJ_ARENA_BYTES_MAX  ((size_t)256 << 20) /* all values together */
#define TJ_STEPS_MAX        1000000u            /* evaluated nodes and visited elements */
#define TJ_DEPTH_MAX        64u                 /* blocks, calls and values inside each other */
#define TJ_NESTING_MAX      400u                /* nodes inside each other, which costs C stack */
#define TJ_RANGE_MAX        100000              /* as in Jinja's sandbox */

/* ---- memory ---- */

typedef struct tj_arena_block tj_arena_block;

typedef struct {
    tj_arena_block *blocks; /* owns; the newest first */
    size_t used, size;      /* of the newest */
    size_t total;           /* bytes of all blocks */
} tj_arena;

/* Zeroed memory that lives as long as the arena; NULL when bytes_max or the machine is exhausted.
 */
void *tj_arena_take(tj_arena *arena, size_t size, size_t bytes_max);
void tj_arena_free(tj_arena *arena);

/* ---- values ---- */

typedef enum {
    TJ_UNDEFINED,
    TJ_NONE,
    TJ_BOOL,
    TJ_INT,
    TJ_FLOAT,
    TJ_STRING,
    TJ_LIST,
    TJ_TUPLE,
    TJ_DICT,
    TJ_NAMESPACE, /* a dict whose entries {% set ns.x = ... %} may change */
    TJ_ITERATOR,  /* what map, select and their like give: can be walked once */
    TJ_LOOP,
    TJ_CALLABLE
} tj_kind;

typedef struct tj_value tj_value;
typedef struct tj_run tj_run;

/* marks is NULL when all bytes have the same provenance. */
typedef struct {
    const char *bytes;          /* valid UTF-8, not terminated */
    const unsigned char *marks; /* [size]: 1 = input */
    size_t size;
    bool input; /* if marks is NULL */
} tj_string;

typedef struct {
    tj_value *items;
    size_t count, capacity;
    size_t next; /* iterators: what the next step gives */
} tj_list;

typedef struct tj_pair tj_pair;

typedef struct {
    tj_pair *pairs; /* in order of insertion */
    size_t count, capacity;
} tj_dict;

typedef struct tj_loop tj_loop;         /* jinja_eval.h */
typedef struct tj_callable tj_callable; /* jinja_eval.h */

struct tj_value {
    uint8_t kind;  /* tj_kind */
    bool input;    /* all but strings: printed bytes count as input */
    uint8_t owner; /* undefined: kind of what lacks the attribute, TJ_UNDEFINED for a variable */
    union {
        bool truth;
        int64_t integer;
        double real;
        const tj_string *string; /* undefined: the name that was looked for */
        tj_list *list;
        tj_dict *dict;
        tj_loop *loop;
        const tj_callable *callable;
    } as;
};

struct tj_pair {
    tj_value key, value;
};

/* What all jinja files share while a template runs. */
struct tj_run {
    tj_arena arena;
    const char *name;      /* of the template, for errors */
    uint32_t line, column; /* of the node that is being evaluated */
    uint32_t steps;
    uint32_t nesting; /* evaluations on the C stack */
    tr_error *err;
    tr_status status;       /* TR_OK until something failed */
    struct tj_frame *frame; /* innermost scope */
    const tj_dict *context; /* the caller's variables */
    struct tj_builder *out; /* where statements write */
    tj_value captured;      /* body of the innermost filter block */
    uint32_t depth;         /* blocks and calls inside each other */
    int64_t now_s;          /* what strftime_now says, seconds since 1970 */
};

/* Records an error at the current node. */
void tj_record(tj_run *run, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* The same as an expression that is false, which compilers can see. */
#define tj_fail(...) (tj_record(__VA_ARGS__), false)

/* Records an error without a place (raise_exception); returns false. */
bool tj_fail_plain(tj_run *run, const char *text, size_t size);

/* Counts work; false when the run has done too much. */
bool tj_charge(tj_run *run, size_t steps);

/* Charges for looking at so many bytes. */
bool tj_charge_bytes(tj_run *run, size_t bytes);

/* From the run's arena; NULL with the error recorded. */
void *tj_take(tj_run *run, size_t size);

static inline tj_value tj_none(void)
{
    return (tj_value){.kind = TJ_NONE};
}
static inline tj_value tj_bool(bool truth)
{
    return (tj_value){.kind = TJ_BOOL, .as.truth = truth};
}
static inline tj_value tj_int(int64_t integer)
{
    return (tj_value){.kind = TJ_INT, .as.integer = integer};
}
static inline tj_value tj_float(double real)
{
    return (tj_value){.kind = TJ_FLOAT, .as.real = real};
}

/* A string over bytes that outlive the run; uniform provenance. */
bool tj_string_make(tj_run *run, const char *bytes, size_t size, bool input, tj_value *out);

/* The same for a text in the program. */
bool tj_text(tj_run *run, const char *text, tj_value *out);

/* Bytes [start, end) of a string, sharing them. */
bool tj_string_cut(tj_run *run, const tj_string *s, size_t start, size_t end, tj_value *out);

/* Whether the string is exactly this text. */
bool tj_string_is(const tj_string *s, const char *text);
bool tj_string_equal(const tj_string *a, const tj_string *b);

/* Number of characters, and the byte at which character number index (0..chars) begins. */
size_t tj_string_chars(const tj_string *s);
size_t tj_string_offset(const tj_string *s, size_t index);

/* First place of needle in bytes [start, end) of s, SIZE_MAX when there is none; last: the last. */
size_t tj_string_find(const tj_string *s, const tj_string *needle, size_t start, size_t end,
                      bool last);

bool tj_list_make(tj_run *run, tj_kind kind, size_t capacity, tj_value *out);
bool tj_list_push(tj_run *run, tj_list *list, tj_value item);

bool tj_dict_make(tj_run *run, tj_kind kind, size_t capacity, tj_value *out);

/* Adds or replaces; the key must be hashable. */
bool tj_dict_set(tj_run *run, tj_dict *dict, tj_value key, tj_value value);

/* The value under a key; *found is NULL when it is not there or cannot be a key. */
bool tj_dict_find(tj_run *run, const tj_dict *dict, tj_value key, const tj_value **found);
const tj_value *tj_dict_find_text(const tj_dict *dict, const tj_string *key);

bool tj_is_number(tj_value v);   /* bool, int or float */
double tj_to_double(tj_value v); /* of a number */

/* Python's truth. Undefined is false. */
bool tj_truth(tj_value v);

/* "str", "int", ... as Python names types in errors. */
const char *tj_type_name(tj_value v);

bool tj_equal(tj_run *run, tj_value a, tj_value b, bool *equal);

/* -1, 0 or 1; an error when the kinds have no order. */
bool tj_compare(tj_run *run, tj_value a, tj_value b, int *order);

/* The error that using an undefined value is. */
bool tj_fail_undefined(tj_run *run, tj_value v);

/* ---- building strings ---- */

typedef struct tj_builder {
    char *bytes;
    unsigned char *marks; /* NULL while all bytes have one provenance */
    size_t size, capacity;
    bool input; /* if marks is NULL */
} tj_builder;

bool tj_put(tj_run *run, tj_builder *b, const char *bytes, size_t size, bool input);
bool tj_put_text(tj_run *run, tj_builder *b, const char *text, bool input);
bool tj_put_code(tj_run *run, tj_builder *b, uint32_t code, bool input);
bool tj_put_string(tj_run *run, tj_builder *b, const tj_string *s);

/* Bytes [start, end) of a string with their provenance. */
bool tj_put_part(tj_run *run, tj_builder *b, const tj_string *s, size_t start, size_t end);

/* As str() and repr() print. Undefined prints nothing; callables are refused. */
bool tj_put_str(tj_run *run, tj_builder *b, tj_value v);
bool tj_put_repr(tj_run *run, tj_builder *b, tj_value v);
bool tj_put_float(tj_run *run, tj_builder *b, double real, bool input);

bool tj_built(tj_run *run, const tj_builder *b, tj_value *out);

/* str(v); a string is returned as it is. */
bool tj_to_string(tj_run *run, tj_value v, const tj_string **out);

/* Provenance of byte at. */
static inline bool tj_mark(const tj_string *s, size_t at)
{
    return s->marks != NULL ? s->marks[at] != 0 : s->input;
}

#endif
