/* jinja_parser_expr.c - expressions, by descent, in Jinja's order of precedence:
 *
 *   a if b else c  >  or  >  and  >  not  >  comparison, in  >  + -  >  ~  >  * / // %  >  **
 *   >  sign  >  filter, test, call  >  attribute, index */
#include "core/model/jinja_parser.h"

#include "core/model/jinja_builtins.h"

#include <stdio.h>
#include <string.h>

static tj_node *parse_condition(tj_parser *p, bool condition);
static tj_node *parse_unary(tj_parser *p, bool filters);

static bool descend(tj_parser *p)
{
    if (p->nesting == TJ_NESTING_MAX)
        return tj_parse_fail(p, "an expression nested more than %u deep", TJ_NESTING_MAX);
    p->nesting++;
    return true;
}

static tj_node *constant(tj_parser *p, tj_value value)
{
    tj_node *node = tj_node_new(p, TJ_NODE_CONSTANT);

    if (node != NULL)
        node->value = value;
    return node;
}

static const tj_string *string_of(tj_parser *p, const char *bytes, size_t size)
{
    tj_string *s = tj_arena_take(p->arena, sizeof(*s), TJ_TEMPLATE_BYTES_MAX);

    if (s == NULL) {
        tj_parse_fail(p, "no memory");
        return NULL;
    }
    *s = (tj_string){.bytes = bytes, .size = size};
    return s;
}

const tj_string *tj_take_name(tj_parser *p)
{
    const tj_token *t = tj_peek(p);

    if (t->kind != TJ_TOKEN_NAME) {
        tj_parse_expected(p, "a name");
        return NULL;
    }
    p->at++;
    return string_of(p, t->text, t->size);
}

/* ---- primary ---- */

/* String literals that follow each other are one. */
static tj_node *parse_strings(tj_parser *p)
{
    const tj_token *first = tj_peek(p);
    size_t count = 0, size = 0;

    for (; first[count].kind == TJ_TOKEN_STRING; count++)
        size += first[count].size;
    const char *bytes = first->text;
    if (count > 1) {
        char *joined = tj_arena_take(p->arena, size + 1, TJ_TEMPLATE_BYTES_MAX);
        if (joined == NULL) {
            tj_parse_fail(p, "no memory");
            return NULL;
        }
        bytes = joined;
        for (size_t i = 0; i < count; joined += first[i].size, i++)
            memcpy(joined, first[i].text, first[i].size);
    }
    const tj_string *s = string_of(p, bytes, size);
    if (s == NULL)
        return NULL;
    tj_node *node = constant(p, (tj_value){.kind = TJ_STRING, .as.string = s});
    p->at += count;
    return node;
}

static tj_node *parse_name(tj_parser *p)
{
    static const struct {
        const char *name;
        tj_value value;
    } constants[] = {{"true", {.kind = TJ_BOOL, .as.truth = true}},
                     {"True", {.kind = TJ_BOOL, .as.truth = true}},
                     {"false", {.kind = TJ_BOOL}},
                     {"False", {.kind = TJ_BOOL}},
                     {"none", {.kind = TJ_NONE}},
                     {"None", {.kind = TJ_NONE}}};

    for (size_t i = 0; i < sizeof(constants) / sizeof(constants[0]); i++)
        if (tj_at_name(p, constants[i].name)) {
            tj_node *node = constant(p, constants[i].value);
            p->at++;
            return node;
        }
    tj_node *node = tj_node_new(p, TJ_NODE_NAME);
    if (node != NULL)
        node->text = tj_take_name(p);
    return node == NULL || node->text == NULL ? NULL : node;
}

static tj_node *parse_list(tj_parser *p)
{
    tj_node *node = tj_node_new(p, TJ_NODE_LIST);

    p->at++;
    if (node == NULL)
        return NULL;
    for (tj_node **last = &node->list; !tj_skip_operator(p, "]");) {
        if (node->list != NULL) {
            if (!tj_expect_operator(p, ","))
                return NULL;
            if (tj_skip_operator(p, "]"))
                break;
        }
        tj_node *item = tj_parse_expression(p);
        if (item == NULL)
            return NULL;
        last = tj_chain(last, item);
    }
    return node;
}

static tj_node *parse_dict(tj_parser *p)
{
    tj_node *node = tj_node_new(p, TJ_NODE_DICT);

    p->at++;
    if (node == NULL)
        return NULL;
    for (tj_node **last = &node->list; !tj_skip_operator(p, "}");) {
        if (node->list != NULL) {
            if (!tj_expect_operator(p, ","))
                return NULL;
            if (tj_skip_operator(p, "}"))
                break;
        }
        tj_node *pair = tj_node_new(p, TJ_NODE_PAIR);
        if (pair == NULL)
            return NULL;
        pair->a = tj_parse_expression(p);
        if (pair->a == NULL || !tj_expect_operator(p, ":"))
            return NULL;
        pair->b = tj_parse_expression(p);
        if (pair->b == NULL)
            return NULL;
        last = tj_chain(last, pair);
    }
    return node;
}

/* ( ), (a) or (a, b). */
static tj_node *parse_brackets(tj_parser *p)
{
    tj_node *node;

    p->at++;
    if (tj_at_operator(p, ")"))
        node = tj_node_new(p, TJ_NODE_TUPLE);
    else
        node = tj_parse_tuple(p, true, NULL);
    return node != NULL && tj_expect_operator(p, ")") ? node : NULL;
}

static tj_node *parse_primary(tj_parser *p)
{
    const tj_token *t = tj_peek(p);
    tj_node *node;

    switch (t->kind) {
    case TJ_TOKEN_NAME:
        return parse_name(p);
    case TJ_TOKEN_STRING:
        return parse_strings(p);
    case TJ_TOKEN_INTEGER:
    case TJ_TOKEN_FLOAT:
        node = constant(p, t->kind == TJ_TOKEN_INTEGER ? tj_int(t->integer) : tj_float(t->real));
        p->at++;
        return node;
    default:
        if (tj_at_operator(p, "("))
            return parse_brackets(p);
        if (tj_at_operator(p, "["))
            return parse_list(p);
        if (tj_at_operator(p, "{"))
            return parse_dict(p);
        tj_parse_expected(p, "an expression");
        return NULL;
    }
}

/* ---- attributes, calls, filters, tests ---- */

/* Arguments between brackets, the opening one included. */
static bool parse_arguments(tj_parser *p, tj_node **list)
{
    tj_node **last = list;
    bool keywords = false;

    if (!tj_expect_operator(p, "("))
        return false;
    while (!tj_skip_operator(p, ")")) {
        if (*list != NULL) {
            if (!tj_expect_operator(p, ","))
                return false;
            if (tj_skip_operator(p, ")"))
                break;
        }
        if (tj_at_operator(p, "*") || tj_at_operator(p, "**"))
            return tj_parse_fail(p, "arguments with * are not supported");
        tj_node *argument = tj_node_new(p, TJ_NODE_ARGUMENT);
        if (argument == NULL)
            return false;
        if (tj_peek(p)->kind == TJ_TOKEN_NAME &&
            tj_token_is(&p->tokens[p->at + 1], TJ_TOKEN_OPERATOR, "=")) {
            argument->text = tj_take_name(p);
            p->at++;
            keywords = true;
        } else if (keywords) {
            return tj_parse_fail(p, "a positional argument behind a keyword argument");
        }
        argument->a = tj_parse_expression(p);
        if (argument->a == NULL)
            return false;
        last = tj_chain(last, argument);
    }
    return true;
}

static tj_node *parse_call(tj_parser *p, tj_node *callee)
{
    tj_node *node = tj_node_new(p, TJ_NODE_CALL);

    if (node == NULL)
        return NULL;
    node->a = callee;
    return parse_arguments(p, &node->list) ? node : NULL;
}

/* Optional part of a slice: absent before : and ]. */
static bool parse_slice_part(tj_parser *p, tj_node **part)
{
    if (tj_at_operator(p, ":") || tj_at_operator(p, "]"))
        return true;
    *part = tj_parse_expression(p);
    return *part != NULL;
}

static tj_node *parse_subscript(tj_parser *p, tj_node *object)
{
    tj_node *node = tj_node_new(p, TJ_NODE_INDEX);
    tj_node *start = NULL;

    p->at++;
    if (node == NULL || !parse_slice_part(p, &start))
        return NULL;
    node->a = object;
    node->b = start;
    if (tj_at_operator(p, ":")) {
        node->b = tj_node_new(p, TJ_NODE_SLICE);
        if (node->b == NULL)
            return NULL;
        node->b->a = start;
        p->at++;
        if (!parse_slice_part(p, &node->b->b) ||
            (tj_skip_operator(p, ":") && !parse_slice_part(p, &node->b->c)))
            return NULL;
    }
    if (node->b == NULL) {
        tj_parse_expected(p, "an index");
        return NULL;
    }
    return tj_expect_operator(p, "]") ? node : NULL;
}

static tj_node *parse_attribute(tj_parser *p, tj_node *object)
{
    p->at++;
    const tj_token *t = tj_peek(p);
    bool index = t->kind == TJ_TOKEN_INTEGER;
    tj_node *node = tj_node_new(p, index ? TJ_NODE_INDEX : TJ_NODE_ATTRIBUTE);

    if (node == NULL)
        return NULL;
    node->a = object;
    if (!index) {
        node->text = tj_take_name(p);
        return node->text == NULL ? NULL : node;
    }
    node->b = constant(p, tj_int(t->integer));
    p->at++;
    return node->b == NULL ? NULL : node;
}

static tj_node *parse_postfix(tj_parser *p, tj_node *node)
{
    while (node != NULL) {
        if (tj_at_operator(p, "."))
            node = parse_attribute(p, node);
        else if (tj_at_operator(p, "["))
            node = parse_subscript(p, node);
        else if (tj_at_operator(p, "("))
            node = parse_call(p, node);
        else
            break;
    }
    return node;
}

static bool fail_unknown(tj_parser *p, const char *what, const tj_string *name)
{
    p->at--; /* the error is at the name */
    return tj_parse_fail(p, "no %s named '%.*s'", what, (int)(name->size > 60 ? 60 : name->size),
                         name->bytes);
}

/* One filter, its bar already stepped over. */
static tj_node *parse_filter(tj_parser *p, tj_node *operand)
{
    tj_node *node = tj_node_new(p, TJ_NODE_FILTER);
    const tj_string *name = node == NULL ? NULL : tj_take_name(p);

    if (name == NULL)
        return NULL;
    node->a = operand;
    node->text = name;
    node->builtin = tj_find_filter(name);
    if (node->builtin == NULL) {
        fail_unknown(p, "filter", name);
        return NULL;
    }
    if (tj_at_operator(p, "(") && !parse_arguments(p, &node->list))
        return NULL;
    return node;
}

tj_node *tj_parse_filters(tj_parser *p, tj_node *operand)
{
    tj_node *node = parse_filter(p, operand);

    while (node != NULL && tj_skip_operator(p, "|"))
        node = parse_filter(p, node);
    return node;
}

/* Whether the argument of a test without brackets begins here: x is divisibleby 3. */
static bool at_test_argument(const tj_parser *p)
{
    switch (tj_peek(p)->kind) {
    case TJ_TOKEN_NAME:
        return !tj_at_name(p, "else") && !tj_at_name(p, "or") && !tj_at_name(p, "and") &&
               !tj_at_name(p, "if") && !tj_at_name(p, "is") && !tj_at_name(p, "not") &&
               !tj_at_name(p, "recursive");
    case TJ_TOKEN_STRING:
    case TJ_TOKEN_INTEGER:
    case TJ_TOKEN_FLOAT:
        return true;
    default:
        return tj_at_operator(p, "[") || tj_at_operator(p, "{");
    }
}

static tj_node *parse_test(tj_parser *p, tj_node *operand)
{
    tj_node *node = tj_node_new(p, TJ_NODE_TEST);

    if (node == NULL)
        return NULL;
    node->a = operand;
    node->negated = tj_skip_name(p, "not");
    node->text = tj_take_name(p);
    if (node->text == NULL)
        return NULL;
    node->builtin = tj_find_test(node->text);
    if (node->builtin == NULL) {
        fail_unknown(p, "test", node->text);
        return NULL;
    }
    if (tj_at_operator(p, "("))
        return parse_arguments(p, &node->list) ? node : NULL;
    if (!at_test_argument(p))
        return node;
    node->list = tj_node_new(p, TJ_NODE_ARGUMENT);
    if (node->list == NULL)
        return NULL;
    node->list->a = parse_postfix(p, parse_primary(p));
    return node->list->a == NULL ? NULL : node;
}

static tj_node *parse_suffixes(tj_parser *p, tj_node *node)
{
    while (node != NULL) {
        if (tj_skip_operator(p, "|"))
            node = parse_filter(p, node);
        else if (tj_skip_name(p, "is"))
            node = parse_test(p, node);
        else if (tj_at_operator(p, "("))
            node = parse_call(p, node);
        else
            break;
    }
    return node;
}

/* ---- operators ---- */

static tj_node *parse_unary(tj_parser *p, bool filters)
{
    tj_node *node;

    if (!descend(p))
        return NULL;
    if (tj_at_operator(p, "-") || tj_at_operator(p, "+")) {
        node = tj_node_new(p, TJ_NODE_UNARY);
        if (node != NULL) {
            node->op = tj_at_operator(p, "-") ? TJ_OP_SUBTRACT : TJ_OP_ADD;
            p->at++;
            node->a = parse_unary(p, false);
            if (node->a == NULL)
                node = NULL;
        }
    } else {
        node = parse_primary(p);
    }
    node = parse_postfix(p, node);
    if (filters)
        node = parse_suffixes(p, node);
    p->nesting--;
    return node;
}

typedef struct {
    const char *text;
    tj_op op;
} operator_row;

static const operator_row power_row[] = {{"**", TJ_OP_POWER}, {NULL, TJ_OP_ADD}};
static const operator_row product_rows[] = {{"*", TJ_OP_MULTIPLY},
                                            {"/", TJ_OP_DIVIDE},
                                            {"//", TJ_OP_FLOOR_DIVIDE},
                                            {"%", TJ_OP_MODULO},
                                            {NULL, TJ_OP_ADD}};
static const operator_row sum_rows[] = {{"+", TJ_OP_ADD}, {"-", TJ_OP_SUBTRACT}, {NULL, TJ_OP_ADD}};
static const operator_row compare_rows[] = {
    {"==", TJ_OP_EQUAL},  {"!=", TJ_OP_NOT_EQUAL},     {"<", TJ_OP_LESS}, {"<=", TJ_OP_LESS_EQUAL},
    {">", TJ_OP_GREATER}, {">=", TJ_OP_GREATER_EQUAL}, {NULL, TJ_OP_ADD}};

static const operator_row *take_operator(tj_parser *p, const operator_row *rows)
{
    for (; rows->text != NULL; rows++)
        if (tj_skip_operator(p, rows->text))
            return rows;
    return NULL;
}

/* operand {op operand}, grouped to the left. */
static tj_node *parse_binary(tj_parser *p, const operator_row *rows,
                             tj_node *(*operand)(tj_parser *p))
{
    tj_node *left = operand(p);

    while (left != NULL) {
        const tj_token *sign = tj_peek(p);
        const operator_row *row = take_operator(p, rows);
        if (row == NULL)
            break;
        tj_node *node = tj_node_new(p, TJ_NODE_BINARY);
        if (node == NULL)
            return NULL;
        node->line = sign->line; /* errors are about the operator */
        node->column = sign->column;
        node->op = row->op;
        node->a = left;
        node->b = operand(p);
        left = node->b == NULL ? NULL : node;
    }
    return left;
}

static tj_node *parse_signed(tj_parser *p)
{
    return parse_unary(p, true);
}

static tj_node *parse_power(tj_parser *p)
{
    return parse_binary(p, power_row, parse_signed);
}

static tj_node *parse_product(tj_parser *p)
{
    return parse_binary(p, product_rows, parse_power);
}

static tj_node *parse_concat(tj_parser *p)
{
    tj_node *first = parse_product(p);

    if (first == NULL || !tj_at_operator(p, "~"))
        return first;
    tj_node *node = tj_node_new(p, TJ_NODE_CONCAT);
    if (node == NULL)
        return NULL;
    tj_node **last = tj_chain(&node->list, first);
    while (tj_skip_operator(p, "~")) {
        tj_node *item = parse_product(p);
        if (item == NULL)
            return NULL;
        last = tj_chain(last, item);
    }
    return node;
}

static tj_node *parse_sum(tj_parser *p)
{
    return parse_binary(p, sum_rows, parse_concat);
}

/* in, not in, or one of compare_rows. */
static bool take_comparison(tj_parser *p, tj_op *op)
{
    const operator_row *row = take_operator(p, compare_rows);

    if (row != NULL) {
        *op = row->op;
        return true;
    }
    if (tj_skip_name(p, "in")) {
        *op = TJ_OP_IN;
        return true;
    }
    if (tj_at_name(p, "not") && tj_token_is(&p->tokens[p->at + 1], TJ_TOKEN_NAME, "in")) {
        p->at += 2;
        *op = TJ_OP_NOT_IN;
        return true;
    }
    return false;
}

static tj_node *parse_compare(tj_parser *p)
{
    tj_node *first = parse_sum(p), *node = NULL;
    tj_node **last = NULL;
    tj_op op;

    while (first != NULL && take_comparison(p, &op)) {
        if (node == NULL) {
            node = tj_node_new(p, TJ_NODE_COMPARE);
            if (node == NULL)
                return NULL;
            node->a = first;
            last = &node->list;
        }
        tj_node *operand = tj_node_new(p, TJ_NODE_OPERAND);
        if (operand == NULL)
            return NULL;
        operand->op = op;
        operand->a = parse_sum(p);
        if (operand->a == NULL)
            return NULL;
        last = tj_chain(last, operand);
    }
    return node == NULL ? first : node;
}

static tj_node *parse_not(tj_parser *p)
{
    tj_node *node;

    if (!tj_at_name(p, "not"))
        return parse_compare(p);
    if (!descend(p))
        return NULL;
    node = tj_node_new(p, TJ_NODE_NOT);
    p->at++;
    if (node != NULL)
        node->a = parse_not(p);
    p->nesting--;
    return node == NULL || node->a == NULL ? NULL : node;
}

static tj_node *parse_logic(tj_parser *p, const char *name, tj_node_kind kind,
                            tj_node *(*operand)(tj_parser *p))
{
    tj_node *left = operand(p);

    while (left != NULL && tj_skip_name(p, name)) {
        tj_node *node = tj_node_new(p, kind);
        if (node == NULL)
            return NULL;
        node->a = left;
        node->b = operand(p);
        left = node->b == NULL ? NULL : node;
    }
    return left;
}

static tj_node *parse_and(tj_parser *p)
{
    return parse_logic(p, "and", TJ_NODE_AND, parse_not);
}

static tj_node *parse_or(tj_parser *p)
{
    return parse_logic(p, "or", TJ_NODE_OR, parse_and);
}

static tj_node *parse_condition(tj_parser *p, bool condition)
{
    if (!descend(p))
        return NULL;
    tj_node *node = parse_or(p);
    while (condition && node != NULL && tj_at_name(p, "if")) {
        tj_node *choice = tj_node_new(p, TJ_NODE_CONDITION);
        p->at++;
        if (choice == NULL)
            return NULL;
        choice->b = node;
        choice->a = parse_or(p);
        if (choice->a == NULL)
            return NULL;
        if (tj_skip_name(p, "else")) {
            choice->c = parse_condition(p, true);
            if (choice->c == NULL)
                return NULL;
        }
        node = choice;
    }
    p->nesting--;
    return node;
}

tj_node *tj_parse_expression(tj_parser *p)
{
    return parse_condition(p, true);
}

static bool at_tuple_end(const tj_parser *p, const char *stop)
{
    tj_token_kind kind = tj_peek(p)->kind;

    return kind == TJ_TOKEN_PRINT_END || kind == TJ_TOKEN_BLOCK_END || tj_at_operator(p, ")") ||
           (stop != NULL && tj_at_name(p, stop));
}

tj_node *tj_parse_tuple(tj_parser *p, bool condition, const char *stop)
{
    tj_node *first = parse_condition(p, condition);

    if (first == NULL || !tj_at_operator(p, ","))
        return first;
    tj_node *tuple = tj_node_new(p, TJ_NODE_TUPLE);
    if (tuple == NULL)
        return NULL;
    tj_node **last = tj_chain(&tuple->list, first);
    while (tj_skip_operator(p, ",") && !at_tuple_end(p, stop)) {
        tj_node *item = parse_condition(p, condition);
        if (item == NULL)
            return NULL;
        last = tj_chain(last, item);
    }
    return tuple;
}

/* ---- targets ---- */

static tj_node *parse_one_target(tj_parser *p, bool namespaces)
{
    if (tj_skip_operator(p, "(")) {
        tj_node *inner = descend(p) ? tj_parse_target(p, false) : NULL;
        p->nesting -= inner != NULL;
        return inner != NULL && tj_expect_operator(p, ")") ? inner : NULL;
    }
    tj_node *name = parse_name(p);
    if (name == NULL)
        return NULL;
    if (name->kind != TJ_NODE_NAME) {
        p->at--;
        tj_parse_expected(p, "a name that can be set");
        return NULL;
    }
    return namespaces && tj_at_operator(p, ".") ? parse_attribute(p, name) : name;
}

tj_node *tj_parse_target(tj_parser *p, bool namespaces)
{
    tj_node *first = parse_one_target(p, namespaces);

    if (first == NULL || !tj_at_operator(p, ","))
        return first;
    tj_node *tuple = tj_node_new(p, TJ_NODE_TUPLE);
    if (tuple == NULL)
        return NULL;
    tj_node **last = tj_chain(&tuple->list, first);
    while (tj_skip_operator(p, ",")) {
        if (tj_at_operator(p, "=") || tj_at_operator(p, ")") || tj_at_name(p, "in"))
            break;
        tj_node *item = parse_one_target(p, namespaces);
        if (item == NULL)
            return NULL;
        last = tj_chain(last, item);
    }
    return tuple;
}
