/* routes.h - which path is answered by what. */
#ifndef TR_API_ROUTES_H
#define TR_API_ROUTES_H

#include "actors/cluster.h"
#include "api/exchange.h"

/* What the routes know of their server. Pointers are borrowed. */
typedef struct {
    tr_exchanges *exchanges;
    void (*health)(void *ctx, tr_health *out);
    void *health_ctx;
    int64_t started; /* seconds since 1970 */
    bool stopping;
} tr_routes;

/* Answers a complete request, now or later. */
void tr_routes_request(const tr_routes *routes, tr_connection *c, tr_http_request *r);

#endif
