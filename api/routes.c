/* routes.c - to add an endpoint: a handler and a row of the table. */
#include "api/routes.h"

#include "api/openai.h"

#include <stdlib.h>
#include <string.h>

/* Seconds after which it is worth asking again: about as long as a node takes to come back. */
#define RETRY_HEALTH_S 5

/* Largest body of the small answers: names and sentences, escaped. */
#define SMALL_BODY_MAX 8192

typedef struct {
    const char *path;
    const char *method;
    void (*handle)(const tr_routes *routes, tr_connection *c, tr_http_request *r);
} route;

static void routes_refuse(tr_connection *c, unsigned status, const char *allow,
                          const char *sentence, const char *detail)
{
    char *body = malloc(TR_API_ERROR_JSON_MAX);
    tr_json w;
    tr_api_error err;
    tr_api_fail(&err, status, NULL, NULL, "%s%.200s", sentence, detail);
    tr_json_init(&w, body, body == NULL ? 0 : TR_API_ERROR_JSON_MAX);
    tr_api_error_write(&w, &err);
    tr_connection_respond(
        c,
        &(tr_response_head){.status = status, .content_type = "application/json", .allow = allow},
        body, w.overflow ? 0 : w.size);
}

static void routes_respond_json(tr_connection *c, unsigned status, unsigned retry_after_s,
                                char *body, const tr_json *w)
{
    if (body == NULL || w->overflow) {
        free(body);
        routes_refuse(c, 503, NULL, "There is no memory for the answer.", "");
        return;
    }
    tr_connection_respond(c,
                          &(tr_response_head){.status = status,
                                              .content_type = "application/json",
                                              .retry_after_s = retry_after_s},
                          body, w->size);
}

static void routes_health(const tr_routes *routes, tr_health *out)
{
    routes->health(routes->health_ctx, out);
    if (routes->stopping) {
        *out = (tr_health){.state = TR_HEALTH_NOT_SERVING, .text = "the server is stopping"};
    }
}

static void route_health(const tr_routes *routes, tr_connection *c, tr_http_request *r)
{
    static const char *const states[] = {
        [TR_HEALTH_STARTING] = "starting",
        [TR_HEALTH_SERVING] = "serving",
        [TR_HEALTH_DEGRADED] = "degraded",
        [TR_HEALTH_NOT_SERVING] = "not_serving",
    };
    (void)r;
    tr_health health;
    routes_health(routes, &health);
    bool serving = tr_health_takes_requests(health.state);
    char *body = malloc(SMALL_BODY_MAX);
    tr_json w;
    tr_json_init(&w, body, body == NULL ? 0 : SMALL_BODY_MAX);
    tr_json_object_begin(&w);
    tr_json_pair_string(&w, "status", states[health.state]);
    if (health.state != TR_HEALTH_SERVING)
        tr_json_pair_string(&w, "reason", health.text);
    tr_json_pair_int(&w, "requests_in_flight", routes->exchanges->count);
    tr_json_object_end(&w);
    routes_respond_json(c, serving ? 200 : 503, serving ? 0 : RETRY_HEALTH_S, body, &w);
}

static void route_models(const tr_routes *routes, tr_connection *c, tr_http_request *r)
{
    (void)r;
    char *body = malloc(SMALL_BODY_MAX);
    tr_json w;
    tr_json_init(&w, body, body == NULL ? 0 : SMALL_BODY_MAX);
    tr_openai_models(&w, routes->exchanges->model, routes->started);
    routes_respond_json(c, 200, 0, body, &w);
}

static void route_metrics(const tr_routes *routes, tr_connection *c, tr_http_request *r)
{
    (void)r;
    size_t size = 0;
    char *page = tr_server_metrics_page(routes->exchanges->metrics, &size);
    if (page == NULL) {
        routes_refuse(c, 503, NULL, "There is no memory for the answer.", "");
        return;
    }
    tr_connection_respond(
        c,
        &(tr_response_head){.status = 200,
                            .content_type = "text/plain; version=0.0.4; charset=utf-8"},
        page, size);
}

static void routes_generate(const tr_routes *routes, tr_connection *c, tr_http_request *r,
                            tr_api_kind kind)
{
    tr_health health;
    routes_health(routes, &health);
    if (!tr_health_takes_requests(health.state)) {
        tr_api_error err;
        tr_api_fail(&err, 503, NULL, NULL, "Not serving: %s.", health.text);
        err.retry_after_s = RETRY_HEALTH_S;
        tr_respond_error(c, &err);
        return;
    }
    char *body = r->body;
    r->body = NULL;
    tr_exchange_start(routes->exchanges, c, kind, body, r->body_size);
}

static void route_completions(const tr_routes *routes, tr_connection *c, tr_http_request *r)
{
    routes_generate(routes, c, r, TR_API_COMPLETION);
}

static void route_chat(const tr_routes *routes, tr_connection *c, tr_http_request *r)
{
    routes_generate(routes, c, r, TR_API_CHAT);
}

static const route routes_table[] = {
    {"/health", "GET", route_health},
    {"/metrics", "GET", route_metrics},
    {"/v1/models", "GET", route_models},
    {"/v1/completions", "POST", route_completions},
    {"/v1/chat/completions", "POST", route_chat},
};

void tr_routes_request(const tr_routes *routes, tr_connection *c, tr_http_request *r)
{
    for (size_t i = 0; i < sizeof(routes_table) / sizeof(routes_table[0]); i++) {
        const route *row = &routes_table[i];
        if (strcmp(row->path, r->path) != 0)
            continue;
        bool head = strcmp(r->method, "HEAD") == 0 && strcmp(row->method, "GET") == 0;
        if (head || strcmp(row->method, r->method) == 0)
            row->handle(routes, c, r);
        else
            routes_refuse(c, 405, row->method, "This path takes ", row->method);
        return;
    }
    routes_refuse(c, 404, NULL, "There is nothing at ", r->path);
}
