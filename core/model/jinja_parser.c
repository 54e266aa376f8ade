/* jinja_parser.c - statements. */
#include "core/model/jinja_parser.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- tokens and errors ---- */

bool tj_parse_fail(tj_parser *p, const char *fmt, ...)
{
    const tj_token *t = tj_peek(p);
    char text[sizeof(p->err->text)];
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    if (p->status == TR_OK) /* the first error is the cause */
        p->status =
            tr_fail(p->err, TR_E_INVALID, "%s:%u:%u: %s", p->name, t->line, t->column, text);
    return false;
}

bool tj_parse_expected(tj_parser *p, const char *expected)
{
    const tj_token *t = tj_peek(p);
    int size = (int)(t->size > 40 ? 40 : t->size);

    switch (t->kind) {
    case TJ_TOKEN_TEXT:
    case TJ_TOKEN_BLOCK_BEGIN:
    case TJ_TOKEN_PRINT_BEGIN:
    case TJ_TOKEN_END:
        return tj_parse_fail(p, "the end of the template, expected %s", expected);
    case TJ_TOKEN_BLOCK_END:
    case TJ_TOKEN_PRINT_END:
        return tj_parse_fail(p, "the end of the tag, expected %s", expected);
    case TJ_TOKEN_INTEGER:
    case TJ_TOKEN_FLOAT:
        return tj_parse_fail(p, "a number, expected %s", expected);
    case TJ_TOKEN_NAME:
    case TJ_TOKEN_STRING:
    case TJ_TOKEN_OPERATOR:
        break;
    }
    return tj_parse_fail(p, "'%.*s', expected %s", size, t->text, expected);
}

bool tj_token_is(const tj_token *t, tj_token_kind kind, const char *text)
{
    return t->kind == kind && t->size == strlen(text) && memcmp(t->text, text, t->size) == 0;
}

bool tj_at_name(const tj_parser *p, const char *name)
{
    return tj_token_is(tj_peek(p), TJ_TOKEN_NAME, name);
}

bool tj_at_operator(const tj_parser *p, const char *text)
{
    return tj_token_is(tj_peek(p), TJ_TOKEN_OPERATOR, text);
}

bool tj_skip_name(tj_parser *p, const char *name)
{
    bool there = tj_at_name(p, name);
    p->at += there;
    return there;
}

bool tj_skip_operator(tj_parser *p, const char *text)
{
    bool there = tj_at_operator(p, text);
    p->at += there;
    return there;
}

bool tj_expect_operator(tj_parser *p, const char *text)
{
    return tj_skip_operator(p, text) || tj_parse_expected(p, text);
}

bool tj_expect_name(tj_parser *p, const char *name)
{
    return tj_skip_name(p, name) || tj_parse_expected(p, name);
}

tj_node *tj_node_new(tj_parser *p, tj_node_kind kind)
{
    tj_node *node = tj_arena_take(p->arena, sizeof(*node), TJ_TEMPLATE_BYTES_MAX);

    if (node == NULL) {
        tj_parse_fail(p, "no memory to parse the template");
        return NULL;
    }
    node->kind = kind;
    node->line = tj_peek(p)->line;
    node->column = tj_peek(p)->column;
    return node;
}

static bool expect_tag_end(tj_parser *p)
{
    if (tj_peek(p)->kind != TJ_TOKEN_BLOCK_END)
        return tj_parse_expected(p, "the end of the tag");
    p->at++;
    return true;
}

/* ---- statements ---- */

static bool parse_body(tj_parser *p, const char *ends, tj_node **body);

/* From behind a tag's content to behind its end tag: the body. */
static bool parse_to(tj_parser *p, const char *end, tj_node **body)
{
    char ends[32];

    snprintf(ends, sizeof(ends), " %s ", end);
    return expect_tag_end(p) && parse_body(p, ends, body) && tj_expect_name(p, end) &&
           expect_tag_end(p);
}

static tj_node *parse_if(tj_parser *p)
{
    tj_node *node = tj_node_new(p, TJ_NODE_IF);
    bool more = true;

    if (node == NULL)
        return NULL;
    for (tj_node **last = &node->list; more;) {
        tj_node *branch = tj_node_new(p, TJ_NODE_BRANCH);
        if (branch == NULL)
            return NULL;
        bool otherwise = tj_skip_name(p, "else");
        if (!otherwise) {
            p->at++; /* if or elif */
            branch->a = tj_parse_tuple(p, false, NULL);
            if (branch->a == NULL)
                return NULL;
        }
        if (!expect_tag_end(p) ||
            !parse_body(p, otherwise ? " endif " : " elif else endif ", &branch->body))
            return NULL;
        last = tj_chain(last, branch);
        more = !tj_at_name(p, "endif");
    }
    p->at++;
    return expect_tag_end(p) ? node : NULL;
}

static tj_node *parse_for(tj_parser *p)
{
    tj_node *node = tj_node_new(p, TJ_NODE_FOR);

    p->at++;
    if (node == NULL)
        return NULL;
    node->a = tj_parse_target(p, false);
    if (node->a == NULL || !tj_expect_name(p, "in"))
        return NULL;
    node->b = tj_parse_tuple(p, false, "recursive");
    if (node->b == NULL)
        return NULL;
    if (tj_skip_name(p, "if")) {
        node->c = tj_parse_expression(p);
        if (node->c == NULL)
            return NULL;
    }
    if (tj_at_name(p, "recursive")) {
        tj_parse_fail(p, "recursive loops are not supported");
        return NULL;
    }
    p->loops++;
    bool parsed = expect_tag_end(p) && parse_body(p, " else endfor ", &node->body);
    p->loops--;
    if (!parsed)
        return NULL;
    if (tj_skip_name(p, "else") && (!expect_tag_end(p) || !parse_body(p, " endfor ", &node->other)))
        return NULL;
    return tj_expect_name(p, "endfor") && expect_tag_end(p) ? node : NULL;
}

static tj_node *parse_captured(tj_parser *p)
{
    return tj_node_new(p, TJ_NODE_CAPTURED);
}

static tj_node *parse_set(tj_parser *p)
{
    tj_node *node = tj_node_new(p, TJ_NODE_SET);

    p->at++;
    if (node == NULL)
        return NULL;
    node->a = tj_parse_target(p, true);
    if (node->a == NULL)
        return NULL;
    if (tj_skip_operator(p, "=")) {
        node->b = tj_parse_tuple(p, true, NULL);
        return node->b != NULL && expect_tag_end(p) ? node : NULL;
    }
    node->kind = TJ_NODE_SET_BLOCK;
    node->b = parse_captured(p);
    if (node->b != NULL && tj_skip_operator(p, "|"))
        node->b = tj_parse_filters(p, node->b);
    return node->b != NULL && parse_to(p, "endset", &node->body) ? node : NULL;
}

static tj_node *parse_filter_block(tj_parser *p)
{
    tj_node *node = tj_node_new(p, TJ_NODE_FILTER_BLOCK);
    tj_node *captured = node == NULL ? NULL : parse_captured(p);

    p->at++;
    if (captured == NULL)
        return NULL;
    node->b = tj_parse_filters(p, captured);
    return node->b != NULL && parse_to(p, "endfilter", &node->body) ? node : NULL;
}

/* (a, b=1): the parameters of a macro or call block. */
static bool parse_signature(tj_parser *p, tj_node **list)
{
    tj_node **last = list;
    bool defaults = false;

    if (!tj_expect_operator(p, "("))
        return false;
    while (!tj_skip_operator(p, ")")) {
        if (*list != NULL && !tj_expect_operator(p, ","))
            return false;
        tj_node *parameter = tj_node_new(p, TJ_NODE_PARAMETER);
        if (parameter == NULL)
            return false;
        parameter->text = tj_take_name(p);
        if (parameter->text == NULL)
            return false;
        if (tj_skip_operator(p, "=")) {
            defaults = true;
            parameter->a = tj_parse_expression(p);
            if (parameter->a == NULL)
                return false;
        } else if (defaults) {
            return tj_parse_fail(p, "a parameter without a default behind one with a default");
        }
        last = tj_chain(last, parameter);
    }
    return true;
}

/* break and continue inside a macro do not reach a loop around it. */
static bool parse_macro_body(tj_parser *p, const char *end, tj_node **body)
{
    uint32_t loops = p->loops;

    p->loops = 0;
    bool parsed = parse_to(p, end, body);
    p->loops = loops;
    return parsed;
}

static tj_node *parse_macro(tj_parser *p)
{
    tj_node *node = tj_node_new(p, TJ_NODE_MACRO);

    p->at++;
    if (node == NULL)
        return NULL;
    node->text = tj_take_name(p);
    if (node->text == NULL || !parse_signature(p, &node->list))
        return NULL;
    return parse_macro_body(p, "endmacro", &node->body) ? node : NULL;
}

static tj_node *parse_call_block(tj_parser *p)
{
    tj_node *node = tj_node_new(p, TJ_NODE_CALL_BLOCK);

    p->at++;
    if (node == NULL || (tj_at_operator(p, "(") && !parse_signature(p, &node->list)))
        return NULL;
    node->a = tj_parse_expression(p);
    if (node->a == NULL)
        return NULL;
    if (node->a->kind != TJ_NODE_CALL) {
        tj_parse_expected(p, "a call");
        return NULL;
    }
    return parse_macro_body(p, "endcall", &node->body) ? node : NULL;
}

static tj_node *parse_with(tj_parser *p)
{
    tj_node *node = tj_node_new(p, TJ_NODE_WITH);

    p->at++;
    if (node == NULL)
        return NULL;
    for (tj_node **last = &node->list; tj_peek(p)->kind != TJ_TOKEN_BLOCK_END;) {
        if (node->list != NULL && !tj_expect_operator(p, ","))
            return NULL;
        tj_node *set = tj_node_new(p, TJ_NODE_SET);
        if (set == NULL)
            return NULL;
        set->a = tj_parse_target(p, false);
        if (set->a == NULL || !tj_expect_operator(p, "="))
            return NULL;
        set->b = tj_parse_expression(p);
        if (set->b == NULL)
            return NULL;
        last = tj_chain(last, set);
    }
    return parse_to(p, "endwith", &node->body) ? node : NULL;
}

/* {% generation %} marks what a model writes in training; it renders as its body. */
static tj_node *parse_generation(tj_parser *p)
{
    tj_node *node = tj_node_new(p, TJ_NODE_BLOCK);

    p->at++;
    return node != NULL && parse_to(p, "endgeneration", &node->body) ? node : NULL;
}

static tj_node *parse_jump(tj_parser *p, tj_node_kind kind)
{
    tj_node *node = tj_node_new(p, kind);

    if (p->loops == 0) {
        tj_parse_fail(p, "break or continue outside a loop");
        return NULL;
    }
    p->at++;
    return node != NULL && expect_tag_end(p) ? node : NULL;
}

static tj_node *parse_break(tj_parser *p)
{
    return parse_jump(p, TJ_NODE_BREAK);
}

static tj_node *parse_continue(tj_parser *p)
{
    return parse_jump(p, TJ_NODE_CONTINUE);
}

static tj_node *parse_statement(tj_parser *p)
{
    static const struct {
        const char *name;
        tj_node *(*parse)(tj_parser *p); /* begins at the name */
    } statements[] = {
        {"if", parse_if},           {"for", parse_for},
        {"set", parse_set},         {"macro", parse_macro},
        {"with", parse_with},       {"filter", parse_filter_block},
        {"call", parse_call_block}, {"generation", parse_generation},
        {"break", parse_break},     {"continue", parse_continue},
    };

    for (size_t i = 0; i < sizeof(statements) / sizeof(statements[0]); i++)
        if (tj_at_name(p, statements[i].name))
            return statements[i].parse(p);
    tj_parse_expected(p, "a statement (if, for, set, macro, with, filter, call, generation, break, "
                         "continue)");
    return NULL;
}

static tj_node *parse_output(tj_parser *p)
{
    tj_node *node = tj_node_new(p, TJ_NODE_OUTPUT);

    p->at++;
    if (node == NULL)
        return NULL;
    node->a = tj_parse_tuple(p, true, NULL);
    if (node->a == NULL)
        return NULL;
    if (tj_peek(p)->kind != TJ_TOKEN_PRINT_END) {
        tj_parse_expected(p, "}}");
        return NULL;
    }
    p->at++;
    return node;
}

static tj_node *parse_text(tj_parser *p)
{
    tj_node *node = tj_node_new(p, TJ_NODE_TEXT);
    tj_string *s = tj_arena_take(p->arena, sizeof(*s), TJ_TEMPLATE_BYTES_MAX);

    if (node == NULL || s == NULL)
        return NULL;
    *s = (tj_string){.bytes = tj_peek(p)->text, .size = tj_peek(p)->size};
    node->value = (tj_value){.kind = TJ_STRING, .as.string = s};
    p->at++;
    return node;
}

/* Whether the name after {% is one of those between spaces in ends. */
static bool at_end_name(const tj_parser *p, const char *ends)
{
    const tj_token *t = &p->tokens[p->at + 1];
    char key[32];

    if (t->kind != TJ_TOKEN_NAME || t->size > sizeof(key) - 3)
        return false;
    snprintf(key, sizeof(key), " %.*s ", (int)t->size, t->text);
    return strstr(ends, key) != NULL;
}

/* Statements up to a tag whose name is in ends; stops at that name. NULL: up to the end. */
static bool parse_body(tj_parser *p, const char *ends, tj_node **body)
{
    tj_node **last = body;

    if (p->depth == TJ_DEPTH_MAX)
        return tj_parse_fail(p, "statements nested more than %u deep", TJ_DEPTH_MAX);
    p->depth++;
    for (;;) {
        tj_node *node = NULL;
        switch (tj_peek(p)->kind) {
        case TJ_TOKEN_TEXT:
            node = parse_text(p);
            break;
        case TJ_TOKEN_PRINT_BEGIN:
            node = parse_output(p);
            break;
        case TJ_TOKEN_BLOCK_BEGIN:
            if (ends != NULL && at_end_name(p, ends)) {
                p->at++;
                p->depth--;
                return true;
            }
            p->at++;
            node = parse_statement(p);
            break;
        default:
            if (ends != NULL)
                return tj_parse_fail(p, "the end of the template, expected one of:%s", ends);
            p->depth--;
            return true;
        }
        if (node == NULL)
            return tj_parse_fail(p, "no memory to parse the template");
        last = tj_chain(last, node);
    }
}

tr_status tj_parse(tj_template *out, const char *name, const char *source, size_t size,
                   tr_error *err)
{
    tj_template t = {0};
    tj_token *tokens;
    size_t count;
    tj_node *body = NULL;

    t.name = tj_arena_take(&t.arena, strlen(name) + 1, TJ_TEMPLATE_BYTES_MAX);
    if (t.name == NULL)
        return tr_fail(err, TR_E_NOMEM, "%s: no memory for a template", name);
    memcpy(t.name, name, strlen(name) + 1);
    tr_status status = tj_lex(&t.arena, t.name, source, size, &tokens, &count, err);
    if (status == TR_OK) {
        tj_parser p = {.arena = &t.arena, .name = t.name, .tokens = tokens, .err = err};
        if (!parse_body(&p, NULL, &body))
            status = p.status;
    }
    if (status != TR_OK) {
        tj_arena_free(&t.arena);
        return status;
    }
    t.body = body;
    *out = t;
    return TR_OK;
}

void tj_template_free(tj_template *t)
{
    tj_arena_free(&t->arena);
    t->body = NULL;
}
