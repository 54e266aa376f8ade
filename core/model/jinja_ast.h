/* jinja_ast.h - a parsed template: a tree of nodes, read-only once parsed.
 *
 *   source --jinja_lexer.c--> tokens --jinja_parser.c, jinja_parser_expr.c--> nodes --jinja_eval.c,
 *   jinja_exec.c--> text
 *
 * One struct serves all nodes; which fields a kind uses stands beside the kind. */
#ifndef TR_CORE_MODEL_JINJA_AST_H
#define TR_CORE_MODEL_JINJA_AST_H

#include "core/model/jinja_value.h"

/* The longest published template has 17 KB. */
#define TJ_SOURCE_BYTES_MAX   ((size_t)1 << 20)
#define TJ_TEMPLATE_BYTES_MAX ((size_t)256 << 20)

/* clang-format off */
/* Expressions: name, fields. `list` is the first child of a chain linked by `next`. */
#define TJ_NODE_MAP(X)                                                              \
    X(CONSTANT)  /* value */                                                        \
    X(NAME)      /* text: of a variable */                                          \
    X(LIST)      /* list */                                                         \
    X(TUPLE)     /* list */                                                         \
    X(DICT)      /* list of PAIR */                                                 \
    X(PAIR)      /* a: key, b: value */                                             \
    X(ATTRIBUTE) /* a, text */                                                      \
    X(INDEX)     /* a, b: index or SLICE */                                         \
    X(SLICE)     /* a: start, b: stop, c: step; NULL when absent */                 \
    X(CALL)      /* a: callee, list of ARGUMENT */                                  \
    X(ARGUMENT)  /* a: value; text: keyword, NULL when positional */                \
    X(FILTER)    /* a, builtin, list of ARGUMENT */                                 \
    X(TEST)      /* a, builtin, list of ARGUMENT; negated */                        \
    X(NOT)       /* a */                                                            \
    X(UNARY)     /* a, op: TJ_OP_ADD or TJ_OP_SUBTRACT */                           \
    X(BINARY)    /* a, b, op */                                                     \
    X(AND)       /* a, b */                                                         \
    X(OR)        /* a, b */                                                         \
    X(COMPARE)   /* a, list of OPERAND */                                           \
    X(OPERAND)   /* a, op: how it is compared with what stands before it */         \
    X(CONCAT)    /* list */                                                         \
    X(CONDITION) /* a: condition, b: then, c: else or NULL */                       \
    X(CAPTURED)  /* the rendered body of the filter or set block around it */       \
    /* Statements */                                                                \
    X(TEXT)         /* value */                                                     \
    X(OUTPUT)       /* a */                                                         \
    X(IF)           /* list of BRANCH */                                            \
    X(BRANCH)       /* a: condition, NULL for else; body */                         \
    X(FOR)          /* a: target, b: iterable, c: filter or NULL; body; other: else */ \
    X(SET)          /* a: target, b: value */                                       \
    X(SET_BLOCK)    /* a: target, b: expression over CAPTURED; body */              \
    X(FILTER_BLOCK) /* b: expression over CAPTURED; body */                         \
    X(MACRO)        /* text: name; list of PARAMETER; body */                       \
    X(PARAMETER)    /* text; a: default or NULL */                                  \
    X(CALL_BLOCK)   /* a: CALL; list of PARAMETER; body */                          \
    X(WITH)         /* list of SET; body */                                         \
    X(BLOCK)        /* body: generation blocks, which render as they are */         \
    X(BREAK)                                                                        \
    X(CONTINUE)
/* clang-format on */

typedef enum {
#define X(name) TJ_NODE_##name,
    TJ_NODE_MAP(X)
#undef X
} tj_node_kind;

typedef enum {
    TJ_OP_ADD,
    TJ_OP_SUBTRACT,
    TJ_OP_MULTIPLY,
    TJ_OP_DIVIDE,
    TJ_OP_FLOOR_DIVIDE,
    TJ_OP_MODULO,
    TJ_OP_POWER,
    TJ_OP_EQUAL,
    TJ_OP_NOT_EQUAL,
    TJ_OP_LESS,
    TJ_OP_LESS_EQUAL,
    TJ_OP_GREATER,
    TJ_OP_GREATER_EQUAL,
    TJ_OP_IN,
    TJ_OP_NOT_IN
} tj_op;

typedef struct tj_node tj_node;
struct tj_node {
    tj_node_kind kind;
    tj_op op;
    bool negated;
    uint32_t line, column;
    const tj_string *text; /* interned: equal names are the same pointer */
    tj_node *a, *b, *c;
    tj_node *list, *body, *other; /* first of a chain */
    tj_node *next;                /* in the chain that this node is part of */
    const struct tj_builtin *builtin;
    tj_value value;
};

typedef struct tj_template {
    tj_arena arena;
    char *name;          /* owned by the arena */
    const tj_node *body; /* first statement; NULL for an empty template */
} tj_template;

/* Parses a source, which is copied. On failure nothing is owed.
 * errors  TR_E_INVALID with name, line and column; TR_E_NOMEM */
tr_status tj_parse(tj_template *out, const char *name, const char *source, size_t size,
                   tr_error *err);
void tj_template_free(tj_template *t);

/* Renders. now_s is what strftime_now says. variables is borrowed; *out lives in run->arena, which
 * the caller frees whatever is returned. */
tr_status tj_render(const tj_template *t, tj_run *run, const tj_dict *variables,
                    const tj_string **out);

#endif
