/* jinja_lexer.h - cuts a template into tokens, white space control included. */
#ifndef TR_CORE_MODEL_JINJA_LEXER_H
#define TR_CORE_MODEL_JINJA_LEXER_H

#include "core/model/jinja_ast.h"

typedef enum {
    TJ_TOKEN_TEXT,        /* between tags; text */
    TJ_TOKEN_BLOCK_BEGIN, /* {% */
    TJ_TOKEN_BLOCK_END,
    TJ_TOKEN_PRINT_BEGIN, /* {{ */
    TJ_TOKEN_PRINT_END,
    TJ_TOKEN_NAME,     /* text */
    TJ_TOKEN_STRING,   /* text: escapes are resolved */
    TJ_TOKEN_INTEGER,  /* integer */
    TJ_TOKEN_FLOAT,    /* real */
    TJ_TOKEN_OPERATOR, /* text: "+", "==", "(", ... */
    TJ_TOKEN_END
} tj_token_kind;

typedef struct {
    tj_token_kind kind;
    uint32_t line, column; /* from 1; columns count characters */
    const char *text;      /* in the arena */
    size_t size;
    int64_t integer;
    double real;
} tj_token;

/* Tokens of the source, ending with TJ_TOKEN_END; they live in the arena.
 * errors  TR_E_INVALID with name, line and column; TR_E_NOMEM */
tr_status tj_lex(tj_arena *arena, const char *name, const char *source, size_t size,
                 tj_token **tokens, size_t *count, tr_error *err);

#endif
