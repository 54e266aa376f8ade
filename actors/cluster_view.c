/* cluster_view.c - what a node has under one placement: tables, weights, workspaces; and how its
 * actors go over from one to the next. */
#include "actors/cluster_node.h"
#include "actors/switch.h"
#include "core/model/model.h"
#include "core/trace.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SWITCH_POLL_NS 20000 /* an actor goes over in about this time */

cluster_view *cluster_view_new(tr_plan *plan)
{
    cluster_view *view = calloc(1, sizeof(*view));
    if (view == NULL) {
        tr_plan_free(plan);
        return NULL;
    }
    view->plan = *plan;
    *plan = (tr_plan){0};
    return view;
}

/* The batcher has no tables: it goes over by its node context alone, and keeps its memory. */
static bool view_has_state(const tr_cluster *c, uint32_t i)
{
    return c->actors[i].kind != TR_ACTOR_BATCHER;
}

void cluster_view_count(tr_cluster *c, cluster_view *view, tr_budget *budget)
{
    view->node = c->node;
    view->node.plan = &view->plan;
    tr_kv_layout_make(&view->node.kv, c->node.spec, &view->plan, c->node_index);
    c->weights_size = c->weights_done = 0;
    for (uint32_t i = 0; i < c->actors_count; i++) {
        cluster_actor_view *a = &view->actors[i];
        if (view != c->view && !view_has_state(c, i))
            continue;
        a->arena = (tr_arena){.kernels = c->kernels,
                              .model = c->model,
                              .activations_nvfp4 = c->placement->activations_nvfp4,
                              .store = c->store,
                              .given_up = view != c->view ? &c->change.abandoned : NULL};
        c->actors[i].count(&view->node, &a->arena, budget);
        a->arena_size = a->arena.layout.used;
        c->weights_size += tr_arena_counted(&a->arena);
    }
}

void cluster_view_count_parts(const tr_cluster *c, cluster_view *view)
{
    tr_budget_init(&view->parts, c->budget.node, c->budget.bytes_max);
    for (uint32_t i = 0; i < c->actors_count; i++) {
        /* Without a store every matrix counts. */
        tr_arena arena = {.kernels = c->kernels,
                          .model = c->model,
                          .activations_nvfp4 = c->placement->activations_nvfp4};
        c->actors[i].count(&view->node, &arena, &view->parts);
    }
    cluster_count_fixed(c, &view->parts);
}

static void view_on_packed(void *ctx, uint64_t packed_bytes)
{
    tr_cluster *c = ctx;
    c->options.progress(c->options.progress_ctx, "weights", c->weights_done + packed_bytes,
                        c->weights_size);
}

tr_status cluster_view_allocate(tr_cluster *c, cluster_view *view, uint32_t i, tr_error *err)
{
    cluster_actor_view *a = &view->actors[i];
    tr_status status = tr_arena_allocate(&a->arena, a->arena_size, err);
    if (status != TR_OK)
        return status;
    if (c->options.progress != NULL && !atomic_load(&c->started)) {
        if (i > 0)
            c->weights_done += tr_arena_counted(&view->actors[i - 1].arena);
        a->arena.progress = view_on_packed;
        a->arena.progress_ctx = c;
    }
    a->config = (tr_actor_config){
        .node = &view->node, .arena = &a->arena, .team = c->teams[c->actors[i].worker]};
    return TR_OK;
}

tr_status cluster_view_load(tr_cluster *c, cluster_view *view, tr_error *err)
{
    for (uint32_t i = 0; i < c->actors_count; i++) {
        cluster_actor_view *a = &view->actors[i];
        const tr_actor_ops *ops = c->actors[i].ops;
        if (!view_has_state(c, i))
            continue;
        tr_status status = cluster_view_allocate(c, view, i, err);
        if (status != TR_OK)
            return status;
        size_t size = (ops->state_size + 63) / 64 * 64;
        a->fresh = aligned_alloc(64, size);
        if (a->fresh == NULL)
            return tr_fail(err, TR_E_NOMEM, "%zu bytes for the state of an actor", size);
        memset(a->fresh, 0, size);
        status = ops->init(a->fresh, NULL, &a->config, err);
        if (status != TR_OK)
            return status;
    }
    return tr_model_check_files(c->model, err);
}

/* Posts a SWITCH to one actor; TR_E_AGAIN until it has room. */
static tr_status view_post(tr_cluster *c, uint32_t i, const tr_switch *what)
{
    tr_buf *buf = tr_pool_take(c->pool, sizeof(*what));
    if (buf == NULL)
        return TR_E_AGAIN;
    memcpy(buf->data, what, sizeof(*what));
    tr_status status = tr_runtime_post(
        c->runtime, tr_actor_id_make(TR_ACTOR_SUPERVISOR, c->node_index),
        tr_node_actor(c->actors[i].kind, c->actors[i].number), TR_MSG_SWITCH, 0, 0, buf);
    if (status != TR_OK)
        tr_buf_unref(buf);
    return status;
}

static tr_status view_post_until(tr_cluster *c, cluster_questions *q, uint32_t i, tr_switch *what,
                                 uint64_t deadline_ns, tr_error *err)
{
    tr_status status;
    what->done = &q->answered; /* lives as long as the cluster: a late answer still finds it */
    while ((status = view_post(c, i, what)) == TR_E_AGAIN && cluster_now(c) < deadline_ns)
        cluster_sleep(c, SWITCH_POLL_NS);
    if (status != TR_OK)
        return tr_fail(err, TR_E_TIMEOUT, "actor %s takes no messages",
                       tr_actor_kind_name(c->actors[i].kind));
    q->posted++;
    return TR_OK;
}

static tr_status view_wait_done(tr_cluster *c, cluster_questions *q, uint64_t deadline_ns,
                                tr_error *err)
{
    /* acquire: pairs with tr_switch_done. */
    while (atomic_load_explicit(&q->answered, memory_order_acquire) != q->posted) {
        if (cluster_now(c) >= deadline_ns || atomic_load(&c->stopping))
            return tr_fail(err, TR_E_TIMEOUT, "%u actors have not answered",
                           q->posted - atomic_load(&q->answered));
        cluster_sleep(c, SWITCH_POLL_NS);
    }
    return TR_OK;
}

/* Tells every actor to go over and waits for all answers. */
static tr_status view_go_over(tr_cluster *c, cluster_view *view, uint64_t deadline_ns,
                              tr_error *err)
{
    for (uint32_t i = 0; i < c->actors_count; i++) {
        tr_switch post = {
            .what = TR_SWITCH_GO_OVER, .fresh = view->actors[i].fresh, .node = &view->node};
        tr_status status = view_post_until(c, &c->questions, i, &post, deadline_ns, err);
        if (status != TR_OK)
            return status;
    }
    return view_wait_done(c, &c->questions, deadline_ns, err);
}

tr_status cluster_ask(tr_cluster *c, cluster_questions *q, tr_actor_kind kind, tr_switch *question,
                      uint64_t deadline_ns, tr_error *err)
{
    uint32_t i = 0;
    while (i < c->actors_count && c->actors[i].kind != kind)
        i++;
    assert(i < c->actors_count);
    tr_status status = view_post_until(c, q, i, question, deadline_ns, err);
    return status == TR_OK ? view_wait_done(c, q, deadline_ns, err) : status;
}

typedef struct cluster_lent {
    struct cluster_lent *next;
    max_align_t bytes[];
} cluster_lent;

void *cluster_lend(size_t size)
{
    cluster_lent *lent = calloc(1, sizeof(*lent) + size);
    return lent != NULL ? lent->bytes : NULL;
}

void cluster_take_back(tr_cluster *c, void *memory, bool answered)
{
    cluster_lent *lent = (void *)((char *)memory - offsetof(cluster_lent, bytes));
    if (answered) {
        free(lent);
        return;
    }
    lent->next = c->lent;
    c->lent = lent;
}

void cluster_free_lent(tr_cluster *c)
{
    while (c->lent != NULL) {
        cluster_lent *next = c->lent->next;
        free(c->lent);
        c->lent = next;
    }
}

tr_status cluster_view_switch(tr_cluster *c, cluster_view *view, cluster_view **before,
                              uint64_t deadline_ns, tr_error *err)
{
    tr_runtime_set_epoch(c->runtime, view->plan.epoch);
    tr_status status = view_go_over(c, view, deadline_ns, err);
    if (status != TR_OK)
        return status;
    pthread_mutex_lock(&c->lock);
    *before = c->view;
    c->view = view;
    for (uint32_t i = 0; i < c->actors_count; i++)
        if (!view_has_state(c, i)) {
            view->actors[i] = (*before)->actors[i];
            (*before)->actors[i] = (cluster_actor_view){0};
        }
    pthread_mutex_unlock(&c->lock);
    return TR_OK;
}

void cluster_view_free(tr_cluster *c, cluster_view *view)
{
    if (view == NULL)
        return;
    for (uint32_t i = 0; i < c->actors_count; i++) {
        tr_arena_free(&view->actors[i].arena, view->actors[i].arena_size);
        free(view->actors[i].fresh);
    }
    tr_plan_free(&view->plan);
    free(view);
}
