/* test_request.c - bodies of completions and chats: what is accepted is obeyed, what is not is
 * refused with the field's name. */
#include "tests/check.h"

#include "api/request.h"

#include <stdlib.h>

static tr_tokenizer *tokenizer;
static tr_chat_template *chat_template;
static tr_api_model model;

#define CONTEXT 160

/* A row's body stands in single quotes, which are turned into double ones. */
static char *json_of(const char *text, char *out, size_t size)
{
    size_t i = 0;
    for (; text[i] != '\0'; i++) {
        assert_true(i + 1 < size);
        out[i] = text[i] == '\'' ? '"' : text[i];
    }
    out[i] = '\0';
    return out;
}

static bool read_body(tr_api_request *r, tr_api_kind kind, const char *text, tr_api_error *err)
{
    char body[4096];
    json_of(text, body, sizeof(body));
    size_t size = strlen(body);
    char *exact = malloc(size + 1); /* so that a sanitizer sees a read beyond the body */
    assert_non_null(exact);
    memcpy(exact, body, size);
    bool ok = tr_api_request_read(r, &model, kind, exact, size, err);
    free(exact);
    return ok;
}

typedef struct {
    tr_api_kind kind;
    const char *body;
    const char *param; /* "": null */
    const char *names; /* what the sentence contains */
    unsigned status;   /* 0: 400 */
} bad_row;

#define T    TR_API_COMPLETION
#define C    TR_API_CHAT
#define P    "'prompt':'a',"
#define M    "'messages':[{'role':'user','content':'a'}],"
#define TOOL "{'type':'function','function':{'name':'f'}}"

static const bad_row bad_rows[] = {
    /* not a request */
    {T, "", "", "empty", 0},
    {T, "{", "", "line 1", 0},
    {T, "[]", "", "an array", 0},
    {T, "{'prompt':'a','prompt':'b'}", "", "duplicate", 0},
    {T, "{'prompt':'\x80'}", "", "0x80", 0},
    {T, "{}", "prompt", "nothing", 0},
    {C, "{}", "messages", "nothing", 0},

    /* names */
    {T, "{" P "'nonsense':1}", "nonsense", "nonsense", 0},
    {T, "{" P "'suffix':'x'}", "suffix", "not supported", 0},
    {T, "{" P "'messages':[]}", "messages", "not supported", 0},
    {C, "{" M "'prompt':'a'}", "prompt", "not supported", 0},
    {C, "{" M "'functions':[]}", "functions", "not supported", 0},
    {C, "{" M "'top_logprobs':3}", "top_logprobs", "logprobs is not true", 0},
    {T, "{" P "'model':'other'}", "model", "other", 404},
    {T, "{" P "'model':7}", "model", "an integer", 0},

    /* types and ranges */
    {T, "{" P "'max_tokens':'5'}", "max_tokens", "a string", 0},
    {T, "{" P "'max_tokens':0}", "max_tokens", "1 to", 0},
    {T, "{" P "'max_tokens':-1}", "max_tokens", "-1", 0},
    {T, "{" P "'max_tokens':1.5}", "max_tokens", "a number", 0},
    {T, "{" P "'max_tokens':99999999999}", "max_tokens", "99999999999", 0},
    {T, "{" P "'max_tokens':160}", "max_tokens", "159 are left", 0},
    {C, "{" M "'max_tokens':4,'max_completion_tokens':5}", "max_completion_tokens", "one field", 0},
    {T, "{" P "'temperature':-0.1}", "temperature", "0 to 2", 0},
    {T, "{" P "'temperature':2.1}", "temperature", "2.1", 0},
    {T, "{" P "'temperature':true}", "temperature", "a boolean", 0},
    {T, "{" P "'top_p':0}", "top_p", "more than 0", 0},
    {T, "{" P "'top_p':1.01}", "top_p", "0 to 1", 0},
    {T, "{" P "'top_k':-2}", "top_k", "-1 to", 0},
    {T, "{" P "'top_k':1.0}", "top_k", "an integer", 0},
    {T, "{" P "'min_p':2}", "min_p", "0 to 1", 0},
    {T, "{" P "'seed':'x'}", "seed", "an integer", 0},
    {T, "{" P "'seed':1.5}", "seed", "a number", 0},
    {T, "{" P "'seed':9223372036854775808}", "", "line 1", 0},
    {T, "{" P "'stream':1}", "stream", "a boolean", 0},
    {T, "{" P "'stream_options':{}}", "stream_options", "stream is not true", 0},
    {T, "{" P "'stream':true,'stream_options':{'x':1}}", "stream_options", "x", 0},
    {T, "{" P "'stream':true,'stream_options':[]}", "stream_options", "an object", 0},
    {T, "{" P "'stop':5}", "stop", "an integer", 0},
    {T, "{" P "'stop':''}", "stop", "0 bytes", 0},
    {T, "{" P "'stop':['a',1]}", "stop", "an integer", 0},
    {T, "{" P "'stop':['1','2','3','4','5','6','7','8','9','0','1','2','3','4','5','6','7']}",
     "stop", "16", 0},
    {T, "{" P "'logprobs':21}", "logprobs", "0 to 20", 0},
    {T, "{" P "'logprobs':true}", "logprobs", "an integer", 0},
    {C, "{" M "'logprobs':2}", "logprobs", "a boolean", 0},
    {C, "{" M "'logprobs':true,'top_logprobs':21}", "top_logprobs", "0 to 20", 0},

    /* values that this server cannot do */
    {T, "{" P "'n':2}", "n", "accepted: 1", 0},
    {T, "{" P "'best_of':2}", "best_of", "accepted: 1", 0},
    {T, "{" P "'echo':true}", "echo", "false", 0},
    {T, "{" P "'presence_penalty':0.5}", "presence_penalty", "accepted: 0", 0},
    {T, "{" P "'frequency_penalty':1}", "frequency_penalty", "accepted: 0", 0},
    {T, "{" P "'repetition_penalty':1.1}", "repetition_penalty", "accepted: 1", 0},
    {T, "{" P "'logit_bias':{'1':1}}", "logit_bias", "{}", 0},
    {C, "{" M "'response_format':{'type':'json_object'}}", "response_format", "text", 0},
    {C, "{" M "'tool_choice':'required'}", "tool_choice", "auto", 0},
    {C, "{" M "'tool_choice':{'type':'function'}}", "tool_choice", "auto", 0},

    /* prompts */
    {T, "{'prompt':5}", "prompt", "an integer", 0},
    {T, "{'prompt':''}", "prompt", "empty", 0},
    {T, "{'prompt':[]}", "prompt", "empty", 0},
    {T, "{'prompt':['a','b']}", "prompt", "2 prompts", 0},
    {T, "{'prompt':[[1],[2]]}", "prompt", "2 prompts", 0},
    {T, "{'prompt':[1,'a']}", "prompt", "prompt[1]", 0},
    {T, "{'prompt':[1.5]}", "prompt", "a number", 0},
    {T, "{'prompt':[-1]}", "prompt", "-1", 0},
    {T, "{'prompt':[4096]}", "prompt", "4095", 0},

    /* messages */
    {C, "{'messages':'a'}", "messages", "a string", 0},
    {C, "{'messages':[]}", "messages", "an empty array", 0},
    {C, "{'messages':['a']}", "messages[0]", "a string", 0},
    {C, "{'messages':[{'content':'a'}]}", "messages[0].role", "expected system", 0},
    {C, "{'messages':[{'role':'king','content':'a'}]}", "messages[0].role", "king", 0},
    {C, "{'messages':[{'role':'user'}]}", "messages[0].content", "nothing", 0},
    {C, "{'messages':[{'role':'user','content':null}]}", "messages[0].content", "null", 0},
    {C, "{'messages':[{'role':'user','content':5}]}", "messages[0].content", "an integer", 0},
    {C, "{'messages':[{'role':'user','content':[{'type':'image_url','image_url':{}}]}]}",
     "messages[0].content[0]", "image_url", 0},
    {C, "{'messages':[{'role':'user','content':[{'type':'text','text':1}]}]}",
     "messages[0].content[0].text", "an integer", 0},
    {C, "{'messages':[{'role':'user','content':'a','x':1}]}", "messages[0].x", "not supported", 0},
    {C, "{'messages':[{'role':'user','content':'a','name':1}]}", "messages[0].name", "an integer",
     0},
    {C, "{'messages':[{'role':'user','content':'a','tool_calls':[{}]}]}", "messages[0].tool_calls",
     "user", 0},
    {C, "{'messages':[{'role':'assistant','tool_calls':[{}]}]}", "messages[0].tool_calls[0]",
     "function.name", 0},
    {C,
     "{'messages':[{'role':'assistant','tool_calls':[{'function':{'name':'f','arguments':"
     "'[1]'}}]}]}",
     "messages[0].tool_calls[0].function.arguments", "JSON object", 0},
    {C, "{'messages':[{'role':'assistant','tool_calls':[{'function':{'name':'f'}}]}]}",
     "messages[0].tool_calls[0].function.arguments", "nothing", 0},

    /* tools and template arguments */
    {C, "{" M "'tools':{}}", "tools", "an object", 0},
    {C, "{" M "'tools':[{}]}", "tools[0].type", "function", 0},
    {C, "{" M "'tools':[" TOOL ",{'type':'function'}]}", "tools[1].function.name", "nothing", 0},
    {C, "{" M "'tools':[{'type':'function','function':{'name':''}}]}", "tools[0].function.name",
     "1 to", 0},
    {C, "{" M "'tools':[{'type':'function','function':{'name':'f','parameters':[]}}]}",
     "tools[0].function.parameters", "an array", 0},
    {C, "{" M "'reasoning_effort':1}", "reasoning_effort", "an integer", 0},
    {C, "{" M "'chat_template_kwargs':[]}", "chat_template_kwargs", "an array", 0},
    {C, "{" M "'chat_template_kwargs':{'messages':1}}", "chat_template_kwargs", "messages", 0},
    {C, "{" M "'parallel_tool_calls':'no'}", "parallel_tool_calls", "a string", 0},
};

static void what_is_refused_is_named(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(bad_rows) / sizeof(bad_rows[0]); i++) {
        const bad_row *row = &bad_rows[i];
        tr_api_request r;
        tr_api_error err = {0};
        bool ok = read_body(&r, row->kind, row->body, &err);
        if (ok || strcmp(err.param, row->param) != 0 || strstr(err.message, row->names) == NULL)
            print_error("%s\n  ok %d param %s: %s\n", row->body, ok, err.param, err.message);
        assert_false(ok);
        assert_int_equal(err.status, row->status == 0 ? 400 : row->status);
        assert_string_equal(err.param, row->param);
        assert_non_null(strstr(err.message, row->names));
    }
}

static tr_api_request read_good(tr_api_kind kind, const char *body)
{
    tr_api_request r;
    tr_api_error err = {0};
    bool ok = read_body(&r, kind, body, &err);
    if (!ok)
        print_error("%s\n  %s: %s\n", body, err.param, err.message);
    assert_true(ok);
    return r;
}

static void what_is_not_said_has_the_models_default(void **state)
{
    (void)state;
    tr_api_request r = read_good(T, "{'prompt':[7,8]}");
    assert_int_equal(r.tokens_count, 2);
    assert_int_equal(r.tokens[1], 8);
    assert_int_equal(r.tokens_max, 16);
    assert_true(r.sampling.temperature == 0.5f);
    assert_true(r.sampling.top_p == 0.75f);
    assert_int_equal(r.sampling.top_k, 0);
    assert_true(r.sampling.min_p == 0);
    assert_false(r.stream || r.include_usage || r.want_logprobs || r.one_call);
    assert_int_equal(r.stops.count, 0);
    assert_int_equal(r.channel, TR_CHANNEL_CONTENT);
    tr_api_request other = read_good(T, "{'prompt':[7,8]}");
    assert_true(r.sampling.seed != other.sampling.seed); /* chosen at random */
    tr_api_request_free(&r);
    tr_api_request_free(&other);

    r = read_good(C, "{'messages':[{'role':'user','content':'a'}]}");
    assert_int_equal(r.tokens_max, CONTEXT - r.tokens_count); /* a chat may fill the context */
    tr_api_request_free(&r);
}

static void what_is_said_is_kept(void **state)
{
    (void)state;
    tr_api_request r =
        read_good(T, "{'prompt':'a','max_tokens':63,'temperature':0,'top_p':1,'top_k':5,"
                     "'min_p':0.25,'seed':-1,'stop':['x','\\u00e9'],'stream':true,"
                     "'stream_options':{'include_usage':true},'logprobs':0}");
    assert_int_equal(r.tokens_max, 63);
    assert_true(r.sampling.temperature == 0 && r.sampling.top_p == 1 && r.sampling.min_p == 0.25f);
    assert_int_equal(r.sampling.top_k, 5);
    assert_true(r.sampling.seed == UINT64_MAX);
    assert_int_equal(r.stops.count, 2);
    assert_int_equal(r.stops.strings[1].size, 2);
    assert_true(r.stream && r.include_usage && r.want_logprobs);
    assert_int_equal(r.top_logprobs, 0);
    tr_api_request_free(&r);

    r = read_good(C, "{'messages':[{'role':'user','content':'a'}],'max_completion_tokens':7,"
                     "'max_tokens':7,'top_k':-1,'logprobs':true,'top_logprobs':20,'stop':'end',"
                     "'tools':[" TOOL "],'parallel_tool_calls':false}");
    assert_int_equal(r.tokens_max, 7);
    assert_int_equal(r.sampling.top_k, 0);
    assert_int_equal(r.top_logprobs, 20);
    assert_int_equal(r.stops.count, 1);
    assert_int_equal(json_array_size(r.tools), 1);
    assert_true(r.one_call);
    tr_api_request_free(&r);
}

static void fields_that_change_nothing_are_accepted(void **state)
{
    (void)state;
    tr_api_request r = read_good(
        T, "{'model':'tiny','prompt':'a','user':'u','metadata':{'a':1},'store':false,'n':1,"
           "'best_of':1,'echo':false,'presence_penalty':0,'frequency_penalty':0.0,'logit_bias':{},"
           "'suffix':null,'stop':null,'seed':null,'max_tokens':null,'logprobs':null}");
    tr_api_request_free(&r);
    r = read_good(C, "{" M "'response_format':{'type':'text'},'tool_choice':'auto',"
                     "'service_tier':'auto','tools':[],'safety_identifier':'x'}");
    assert_null(r.tools);
    tr_api_request_free(&r);
}

static void prompts_come_in_four_forms(void **state)
{
    (void)state;
    static const char *const same[] = {"{'prompt':'one two'}", "{'prompt':['one two']}"};
    tr_api_request first = read_good(T, same[0]);
    tr_api_request second = read_good(T, same[1]);
    assert_int_equal(first.tokens_count, second.tokens_count);
    assert_memory_equal(first.tokens, second.tokens, first.tokens_count * sizeof(int32_t));
    tr_api_request_free(&first);
    tr_api_request_free(&second);
    second = read_good(T, "{'prompt':[[0,4095]]}");
    assert_int_equal(second.tokens_count, 2);
    assert_int_equal(second.tokens[1], 4095);
    tr_api_request_free(&second);
}

static bool has_token(const tr_api_request *r, const char *text)
{
    int32_t id = tr_tokenizer_find(tokenizer, text);
    assert_true(id >= 0);
    for (size_t i = 0; i < r->tokens_count; i++) {
        if (r->tokens[i] == id)
            return true;
    }
    return false;
}

static void the_effort_decides_whether_an_answer_begins_with_reasoning(void **state)
{
    (void)state;
    static const struct {
        const char *fields;
        tr_channel channel;
    } rows[] = {
        {"", TR_CHANNEL_REASONING},
        {",'reasoning_effort':'high'", TR_CHANNEL_REASONING},
        {",'reasoning_effort':'none'", TR_CHANNEL_CONTENT},
        {",'chat_template_kwargs':{'reasoning_effort':'none'}", TR_CHANNEL_CONTENT},
        {",'chat_template_kwargs':{'reasoning_effort':'none'},'reasoning_effort':'high'",
         TR_CHANNEL_REASONING},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char body[512];
        snprintf(body, sizeof(body), "{'messages':[{'role':'user','content':'a'}]%s}",
                 rows[i].fields);
        tr_api_request r = read_good(C, body);
        assert_int_equal(r.channel, rows[i].channel);
        tr_api_request_free(&r);
    }
}

static void text_of_users_is_never_a_special_token(void **state)
{
    (void)state;
    tr_api_request r = read_good(C, "{'messages':[{'role':'user','content':'<|tool_call:end|>'}]}");
    assert_true(has_token(&r, "<|im:start|>"));
    assert_false(has_token(&r, "<|tool_call:end|>"));
    tr_api_request_free(&r);
}

static void parts_of_a_message_are_joined(void **state)
{
    (void)state;
    tr_api_request one = read_good(C, "{'messages':[{'role':'user','content':'ab c'}]}");
    tr_api_request two =
        read_good(C, "{'messages':[{'role':'user','content':[{'type':'text','text':'ab'},"
                     "{'type':'text','text':' c'}]}]}");
    assert_int_equal(one.tokens_count, two.tokens_count);
    assert_memory_equal(one.tokens, two.tokens, one.tokens_count * sizeof(int32_t));
    tr_api_request_free(&one);
    tr_api_request_free(&two);
}

static void what_an_answer_brought_may_be_sent_back(void **state)
{
    (void)state;
    tr_api_request r = read_good(
        C, "{'messages':[{'role':'user','content':'a'},{'role':'assistant','content':null,"
           "'refusal':null,'annotations':[],'audio':null,'reasoning_content':'b',"
           "'tool_calls':[{'id':'c','type':'function','function':{'name':'f','arguments':"
           "'{\\'k\\':1}'}},{'id':'d','type':'function','function':{'name':'g','arguments':''}}]},"
           "{'role':'tool','tool_call_id':'c','content':'5'}]}");
    tr_api_request_free(&r);
}

static void no_tools_are_shown_when_none_may_be_called(void **state)
{
    (void)state;
    tr_api_request none = read_good(C, "{" M "'tools':[" TOOL "],'tool_choice':'none'}");
    tr_api_request without = read_good(C, "{'messages':[{'role':'user','content':'a'}]}");
    assert_null(none.tools);
    assert_int_equal(none.tokens_count, without.tokens_count);
    tr_api_request_free(&none);
    tr_api_request_free(&without);
}

static void a_prompt_beyond_the_context_is_refused_with_numbers(void **state)
{
    (void)state;
    static const struct {
        tr_api_kind kind;
        const char *begin, *unit, *end, *param;
    } rows[] = {
        {T, "{'prompt':'", "5", "'}", "prompt"},
        {T, "{'prompt':[", "5,", "5]}", "prompt"},
        {C, "{'messages':[{'role':'user','content':'", "5", "'}]}", "messages"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char body[1024];
        size_t size = (size_t)snprintf(body, sizeof(body), "%s", rows[i].begin);
        for (int n = 0; n < CONTEXT; n++)
            size += (size_t)snprintf(body + size, sizeof(body) - size, "%s", rows[i].unit);
        snprintf(body + size, sizeof(body) - size, "%s", rows[i].end);
        tr_api_request r;
        tr_api_error err = {0};
        assert_false(read_body(&r, rows[i].kind, body, &err));
        assert_int_equal(err.status, 400);
        assert_string_equal(err.param, rows[i].param);
        assert_string_equal(err.code, "context_length_exceeded");
        assert_non_null(strstr(err.message, "160 tokens"));
    }
}

static void a_model_without_a_template_has_no_chat(void **state)
{
    (void)state;
    tr_api_request r;
    tr_api_error err = {0};
    model.chat_template = NULL;
    assert_false(read_body(&r, C, "{'messages':[{'role':'user','content':'a'}]}", &err));
    model.chat_template = chat_template;
    assert_int_equal(err.status, 400);
    assert_string_equal(err.code, "no_chat_template");
}

static void deep_and_wide_bodies_are_refused_before_they_are_read(void **state)
{
    (void)state;
    size_t size = 1 << 20;
    char *body = malloc(size);
    tr_api_request r;
    tr_api_error err = {0};
    memset(body, '[', size);
    assert_false(tr_api_request_read(&r, &model, T, body, size, &err));
    assert_non_null(strstr(err.message, "deeper than 64"));
    for (size_t i = 0; i < size; i++)
        body[i] = i % 2 == 0 ? '1' : ',';
    body[0] = '[';
    assert_false(tr_api_request_read(&r, &model, T, body, size, &err));
    assert_non_null(strstr(err.message, "more than"));
    free(body);
}

static int open_model(void **state)
{
    (void)state;
    tr_error err = {0};
    if (tr_tokenizer_open(&tokenizer, MODELS_DIR "/tiny-solar-nvfp4", &err) != TR_OK ||
        tr_chat_template_open(&chat_template, MODELS_DIR "/tiny-solar-nvfp4", &err) != TR_OK) {
        print_error("%s\n", err.text);
        return -1;
    }
    model = (tr_api_model){.name = "tiny",
                           .tokenizer = tokenizer,
                           .chat_template = chat_template,
                           .context_max = CONTEXT,
                           .default_temperature = 0.5f,
                           .default_top_p = 0.75f};
    tr_sentinels_find(&model.sentinels, tokenizer);
    return 0;
}

static int close_model(void **state)
{
    (void)state;
    tr_chat_template_close(chat_template);
    tr_tokenizer_close(tokenizer);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_refused_is_named),
        cmocka_unit_test(what_is_not_said_has_the_models_default),
        cmocka_unit_test(what_is_said_is_kept),
        cmocka_unit_test(fields_that_change_nothing_are_accepted),
        cmocka_unit_test(prompts_come_in_four_forms),
        cmocka_unit_test(the_effort_decides_whether_an_answer_begins_with_reasoning),
        cmocka_unit_test(text_of_users_is_never_a_special_token),
        cmocka_unit_test(parts_of_a_message_are_joined),
        cmocka_unit_test(what_an_answer_brought_may_be_sent_back),
        cmocka_unit_test(no_tools_are_shown_when_none_may_be_called),
        cmocka_unit_test(a_prompt_beyond_the_context_is_refused_with_numbers),
        cmocka_unit_test(a_model_without_a_template_has_no_chat),
        cmocka_unit_test(deep_and_wide_bodies_are_refused_before_they_are_read),
    };
    return cmocka_run_group_tests(tests, open_model, close_model);
}
