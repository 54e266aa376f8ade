/* jinja_parser.h - what the two files of the parser share. */
#ifndef TR_CORE_MODEL_JINJA_PARSER_H
#define TR_CORE_MODEL_JINJA_PARSER_H

#include "core/model/jinja_lexer.h"

typedef struct {
    tj_arena *arena;
    const char *name; /* of the template */
    const tj_token *tokens;
    size_t at;        /* the token that is looked at; the last is TJ_TOKEN_END */
    uint32_t nesting; /* of expressions */
    uint32_t depth;   /* of statements */
    uint32_t loops;   /* that break and continue could mean */
    tr_error *err;
    tr_status status; /* TR_OK until something failed */
} tj_parser;

/* All return NULL or false after an error. */
tj_node *tj_node_new(tj_parser *p, tj_node_kind kind);
bool tj_parse_fail(tj_parser *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* "expected X, found Y" at the current token. */
bool tj_parse_expected(tj_parser *p, const char *expected);

static inline const tj_token *tj_peek(const tj_parser *p)
{
    return &p->tokens[p->at];
}

bool tj_token_is(const tj_token *t, tj_token_kind kind, const char *text);
bool tj_at_name(const tj_parser *p, const char *name);
bool tj_at_operator(const tj_parser *p, const char *text);

/* Steps over the token if it is this one. */
bool tj_skip_name(tj_parser *p, const char *name);
bool tj_skip_operator(tj_parser *p, const char *text);

/* Must be this one. */
bool tj_expect_operator(tj_parser *p, const char *text);
bool tj_expect_name(tj_parser *p, const char *name);

/* A name as a string. */
const tj_string *tj_take_name(tj_parser *p);

/* a if b else c, and what is inside. */
tj_node *tj_parse_expression(tj_parser *p);

/* One expression, or a tuple without brackets. condition: a conditional is allowed; stop: a name
 * that ends it (NULL: none). */
tj_node *tj_parse_tuple(tj_parser *p, bool condition, const char *stop);

/* A chain of filters on operand, beginning behind the first bar. */
tj_node *tj_parse_filters(tj_parser *p, tj_node *operand);

/* name, or a tuple of names; with namespaces: also name.attribute. */
tj_node *tj_parse_target(tj_parser *p, bool namespaces);

/* Adds a node to a chain whose end is *last. */
static inline tj_node **tj_chain(tj_node **last, tj_node *node)
{
    *last = node;
    return &node->next;
}

#endif
