#include "actors/rebalance.h"

#include "actors/node_context.h"
#include "actors/replica.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define STEPS_MIN     8      /* recorded, to choose from: of fewer a layer is left alone */
#define PASSES_MAX    16     /* each tries every expert on every node */
#define EDIT_GAIN_MIN 0.0005 /* of the layer's time: less is not worth a move */
#define ERRORS_MIN    2.0    /* standard errors by which an edit must be better */
#define HOT_SHARE     20     /* one expert of so many may get replicas */

bool tr_routing_check(const uint32_t *words, uint32_t count, uint32_t experts)
{
    uint32_t seen[TR_TERMS_MAX] = {0}, step = 0;

    if (count > TR_ROUTING_WORDS)
        return false;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t number = words[i] >> 16, rows = words[i] & 0xffff;
        if (number == TR_ROUTING_HEAD) {
            step++;
            continue;
        }
        if (step == 0 || number >= experts || rows == 0 || seen[number] == step)
            return false;
        seen[number] = step;
    }
    return true;
}

/* -- how long a layer takes -- */

typedef struct {
    uint32_t first, end; /* words of its experts */
    uint32_t rows;
} recorded_step;

/* A layer with routed experts. */
typedef struct {
    uint32_t number;
    const tr_load_layer *load;
    const tr_load *whole;
    const uint16_t *before; /* [experts_count] who holds them now; bit per node */
    uint16_t *holders;      /* [experts_count] who would */
    uint32_t experts_count;
    uint32_t routers;                /* bit per node */
    uint32_t slices[TR_NODES_MAX];   /* that stand on each */
    tr_heat_cost cost[TR_NODES_MAX]; /* of an expert, measured or assumed */
    recorded_step *steps;            /* owns */
    uint32_t steps_count;
} layer_case;

static double cost_of(const tr_heat_cost *cost, uint32_t rows)
{
    return cost->fixed_ns + cost->row_ns * rows;
}

/* What each node has to do in a step. */
typedef struct {
    double busy_ns[TR_NODES_MAX];
    uint32_t rows[TR_NODES_MAX];
    uint32_t nodes; /* that have anything to do */
} step_work;

static void work_add(step_work *w, const layer_case *c, uint32_t node, uint32_t rows)
{
    w->rows[node] += rows;
    w->busy_ns[node] += cost_of(&c->cost[node], rows);
    w->nodes |= 1u << node;
}

/* Rows of an expert with replicas: as replica.h deals them, as if each expert's rows came one after
 * another. */
static void work_deal(step_work *w, const layer_case *c, uint32_t nodes, uint32_t rows)
{
    uint32_t part[TR_NODES_MAX] = {0}, load[TR_NODES_MAX];

    memcpy(load, w->rows, sizeof(load));
    while (rows > 0) {
        uint32_t block = rows < TR_REPLICA_ROWS ? rows : TR_REPLICA_ROWS;
        uint32_t node = tr_replica_next(load, nodes);
        load[node] += block;
        part[node] += block;
        rows -= block;
    }
    for (uint32_t n = 0; nodes >> n != 0; n++)
        if (part[n] > 0)
            work_add(w, c, n, part[n]);
}

/* From the routers' rows to the last router's last sum. */
static double layer_ends(const layer_case *c, const step_work *w)
{
    uint32_t feeder = (uint32_t)__builtin_ctz(c->routers);
    double end = 0;

    for (uint32_t n = 0; w->nodes >> n != 0; n++) {
        if (!(w->nodes >> n & 1))
            continue;
        double there = c->routers >> n & 1 ? 0 : c->whole->hop_ns[feeder][n];
        for (uint32_t r = 0; c->routers >> r != 0; r++)
            if (c->routers >> r & 1)
                end = fmax(end, there + w->busy_ns[n] + c->whole->hop_ns[n][r]);
    }
    return end;
}

static double step_time(const layer_case *c, const recorded_step *step, const uint16_t *holders)
{
    const uint32_t *words = c->load->routing;
    step_work w = {0};

    for (uint32_t n = 0; n < TR_NODES_MAX; n++)
        if (c->slices[n] > 0) {
            w.busy_ns[n] = c->slices[n] * cost_of(&c->load->slice[n], step->rows);
            w.rows[n] = c->slices[n] * step->rows;
            w.nodes |= 1u << n;
        }
    bool replicated = false;
    for (uint32_t i = step->first; i < step->end; i++) {
        uint32_t nodes = tr_replica_holders(holders[words[i] >> 16], c->routers);
        if ((nodes & (nodes - 1)) != 0)
            replicated = true;
        else
            work_add(&w, c, (uint32_t)__builtin_ctz(nodes), words[i] & 0xffff);
    }
    for (uint32_t i = step->first; replicated && i < step->end; i++) {
        uint32_t nodes = tr_replica_holders(holders[words[i] >> 16], c->routers);
        if ((nodes & (nodes - 1)) != 0)
            work_deal(&w, c, nodes, words[i] & 0xffff);
    }
    return layer_ends(c, &w);
}

/* Mean over every other recorded step, from the first (to choose) or the second (to predict). */
static double mean_time(const layer_case *c, uint32_t from, const uint16_t *holders)
{
    double sum = 0;
    uint32_t count = 0;

    for (uint32_t i = from; i < c->steps_count; i += 2, count++)
        sum += step_time(c, &c->steps[i], holders);
    return count > 0 ? sum / count : 0;
}

/* -- the cases -- */

/* A node that has not computed such an expert is taken for the mean of those that have. Returns
 * whether any has; *assumed: a node that may hold experts had no time of its own. */
static bool case_costs(layer_case *c, bool *assumed)
{
    tr_heat_cost mean = {0};
    uint32_t count = 0;

    for (uint32_t n = 0; n < TR_NODES_MAX; n++)
        if (c->load->expert[n].steps > 0) {
            mean.fixed_ns += c->load->expert[n].fixed_ns;
            mean.row_ns += c->load->expert[n].row_ns;
            count++;
        }
    if (count == 0)
        return false;
    mean.fixed_ns /= count;
    mean.row_ns /= count;
    for (uint32_t n = 0; n < TR_NODES_MAX; n++) {
        bool measured = c->load->expert[n].steps > 0;
        c->cost[n] = measured ? c->load->expert[n] : mean;
        *assumed |= !measured && (c->whole->nodes >> n & 1);
    }
    return true;
}

static bool case_steps(layer_case *c)
{
    const tr_load_layer *load = c->load;

    for (uint32_t i = 0; i < load->routing_count; i++)
        c->steps_count += load->routing[i] >> 16 == TR_ROUTING_HEAD;
    c->steps = calloc(c->steps_count + 1, sizeof(*c->steps));
    if (c->steps == NULL)
        return false;
    uint32_t at = 0;
    for (uint32_t i = 0; i < load->routing_count; i++) {
        if (load->routing[i] >> 16 == TR_ROUTING_HEAD)
            c->steps[at++] =
                (recorded_step){.first = i + 1, .end = i + 1, .rows = load->routing[i] & 0xffff};
        else
            c->steps[at - 1].end = i + 1;
    }
    return true;
}

/* The search over all layers. */
typedef struct {
    layer_case *cases; /* owns, [cases_count]; layers of which enough is known */
    uint32_t cases_count;
    uint64_t room_bytes[TR_NODES_MAX];
    bool costs_assumed;
    const _Atomic bool *given_up; /* borrows, may be NULL */
} search;

static bool search_given_up(const search *s)
{
    return s->given_up != NULL && atomic_load_explicit(s->given_up, memory_order_relaxed);
}

static void search_free(search *s)
{
    for (uint32_t i = 0; i < s->cases_count; i++)
        free(s->cases[i].steps);
    free(s->cases);
}

static tr_status search_begin(search *s, tr_plan *plan, const tr_plan *before, const tr_load *load,
                              tr_error *err)
{
    const tr_plan_shape *shape = &plan->shape;

    memcpy(s->room_bytes, load->room_bytes, sizeof(s->room_bytes));
    s->cases = calloc(shape->layers_count, sizeof(*s->cases));
    if (s->cases == NULL)
        return tr_fail(err, TR_E_NOMEM, "no memory for a search of placements");
    for (uint32_t l = 0; l < shape->layers_count; l++) {
        layer_case *c = &s->cases[s->cases_count];
        *c = (layer_case){.number = l,
                          .load = &load->layers[l],
                          .whole = load,
                          .before = before->channel + (size_t)l * TR_TERMS_MAX,
                          .holders = plan->channel + (size_t)l * TR_TERMS_MAX,
                          .experts_count = shape->experts[l],
                          .routers = tr_plan_span_of(plan, l)->nodes};
        if (c->experts_count == 0 || !case_costs(c, &s->costs_assumed))
            continue;
        for (uint32_t t = 0; t < shape->slices[l]; t++)
            c->slices[tr_plan_channel_node(plan, l, c->experts_count + t)]++;
        if (!case_steps(c))
            return tr_fail(err, TR_E_NOMEM, "no memory for a search of placements");
        if (c->steps_count < 2 * STEPS_MIN)
            free(c->steps);
        else
            s->cases_count++;
    }
    return TR_OK;
}

/* -- the search -- */

/* What an edit would have saved in the steps to choose from: the sum, and that of the squares. */
typedef struct {
    double sum, squares;
} saving;

typedef enum { EDIT_MOVE, EDIT_REPLICA, EDIT_KINDS } edit_kind;

typedef struct {
    uint32_t at; /* its case */
    uint32_t expert;
    uint16_t after;
    double gain_ns; /* of a step */
} candidate;

/* Workspace of a pass. */
typedef struct {
    saving (*savings)[TR_NODES_MAX][EDIT_KINDS]; /* owns, [TR_TERMS_MAX] */
    candidate *candidates;                       /* owns, [candidates_max] */
    uint32_t count;
} pass;

/* The mean if it is certain enough, else 0. */
static double saving_mean(const saving *s, uint32_t steps)
{
    double mean = s->sum / steps;
    double variance = fmax(0, s->squares / steps - mean * mean);
    return mean > ERRORS_MIN * sqrt(variance / steps) ? mean : 0;
}

static uint16_t edit_of(uint16_t before, uint32_t node, edit_kind kind)
{
    return (uint16_t)(kind == EDIT_MOVE ? 1u << node : before | 1u << node);
}

/* Marks the hottest experts of the steps to choose from. */
static void mark_hot(const layer_case *c, bool *hot)
{
    uint64_t rows[TR_TERMS_MAX] = {0};
    uint32_t wanted = c->experts_count / HOT_SHARE > 0 ? c->experts_count / HOT_SHARE : 1;

    for (uint32_t s = 0; s < c->steps_count; s += 2)
        for (uint32_t i = c->steps[s].first; i < c->steps[s].end; i++)
            rows[c->load->routing[i] >> 16] += c->load->routing[i] & 0xffff;
    for (uint32_t k = 0; k < wanted; k++) {
        uint32_t best = 0;
        for (uint32_t e = 1; e < c->experts_count; e++)
            if (rows[e] > rows[best])
                best = e;
        hot[best] = rows[best] > 0;
        rows[best] = 0;
    }
}

/* Adds up what each edit of each expert that a step asked would have saved in it. */
static void try_step(layer_case *c, const recorded_step *step, const bool *hot, pass *p)
{
    double now = step_time(c, step, c->holders);

    for (uint32_t i = step->first; i < step->end; i++) {
        uint32_t e = c->load->routing[i] >> 16;
        uint16_t before = c->holders[e];
        bool single = (before & (before - 1)) == 0;
        for (uint32_t n = 0; c->whole->nodes >> n != 0; n++) {
            if (!(c->whole->nodes >> n & 1) || (before >> n & 1))
                continue;
            for (edit_kind kind = single ? EDIT_MOVE : EDIT_REPLICA;
                 kind <= (hot[e] ? EDIT_REPLICA : EDIT_MOVE); kind++) {
                c->holders[e] = edit_of(before, n, kind);
                double saved = now - step_time(c, step, c->holders);
                p->savings[e][n][kind].sum += saved;
                p->savings[e][n][kind].squares += saved * saved;
            }
        }
        c->holders[e] = before;
    }
}

static bool has_room(const search *s, const layer_case *c, uint32_t expert, uint32_t node)
{
    return (c->before[expert] >> node & 1) || s->room_bytes[node] >= c->load->expert_bytes;
}

/* The best edit of each expert of a case. */
static void collect(const search *s, uint32_t at, pass *p)
{
    layer_case *c = &s->cases[at];
    bool hot[TR_TERMS_MAX] = {false};
    uint32_t steps = (c->steps_count + 1) / 2;
    double least = EDIT_GAIN_MIN * mean_time(c, 0, c->holders);

    memset(p->savings, 0, c->experts_count * sizeof(*p->savings));
    mark_hot(c, hot);
    for (uint32_t i = 0; i < c->steps_count && !search_given_up(s); i += 2)
        try_step(c, &c->steps[i], hot, p);
    for (uint32_t e = 0; e < c->experts_count; e++) {
        candidate best = {.at = at, .expert = e, .gain_ns = least};
        for (uint32_t n = 0; n < TR_NODES_MAX; n++)
            for (edit_kind kind = EDIT_MOVE; kind < EDIT_KINDS; kind++) {
                double gain = saving_mean(&p->savings[e][n][kind], steps);
                if (gain > best.gain_ns && has_room(s, c, e, n)) {
                    best.gain_ns = gain;
                    best.after = edit_of(c->holders[e], n, kind);
                }
            }
        if (best.after != 0)
            p->candidates[p->count++] = best;
    }
}

/* What the edit saves now: others have been made since it was found. */
static double candidate_gain(layer_case *c, const candidate *edit)
{
    saving total = {0};
    uint16_t before = c->holders[edit->expert];

    for (uint32_t i = 0; i < c->steps_count; i += 2) {
        double now = step_time(c, &c->steps[i], c->holders);
        c->holders[edit->expert] = edit->after;
        double saved = now - step_time(c, &c->steps[i], c->holders);
        c->holders[edit->expert] = before;
        total.sum += saved;
        total.squares += saved * saved;
    }
    return saving_mean(&total, (c->steps_count + 1) / 2);
}

static int better_first(const void *a, const void *b)
{
    const candidate *x = a, *y = b;
    if (x->gain_ns != y->gain_ns)
        return x->gain_ns < y->gain_ns ? 1 : -1;
    if (x->at != y->at)
        return x->at < y->at ? -1 : 1;
    return x->expert < y->expert ? -1 : 1;
}

/* Lets an expert stand elsewhere. Its memory is taken where it does not lie yet. */
static void make_edit(search *s, layer_case *c, uint32_t expert, uint16_t after)
{
    for (uint32_t n = 0; n < TR_NODES_MAX; n++) {
        if (c->before[expert] >> n & 1)
            continue;
        if ((after & ~(uint32_t)c->holders[expert]) >> n & 1)
            s->room_bytes[n] -= c->load->expert_bytes;
        if ((c->holders[expert] & ~(uint32_t)after) >> n & 1)
            s->room_bytes[n] += c->load->expert_bytes;
    }
    c->holders[expert] = after;
}

/* Makes the candidates that still save enough; returns how many. */
static uint32_t make_edits(search *s, pass *p)
{
    uint32_t made = 0;

    qsort(p->candidates, p->count, sizeof(*p->candidates), better_first);
    for (uint32_t i = 0; i < p->count && !search_given_up(s); i++) {
        const candidate *edit = &p->candidates[i];
        layer_case *c = &s->cases[edit->at];
        uint32_t added = edit->after & ~(uint32_t)c->holders[edit->expert];
        double least = EDIT_GAIN_MIN * mean_time(c, 0, c->holders);
        if (!has_room(s, c, edit->expert, (uint32_t)__builtin_ctz(added)) ||
            candidate_gain(c, edit) <= least)
            continue;
        make_edit(s, c, edit->expert, edit->after);
        made++;
    }
    return made;
}

static tr_status search_run(search *s, size_t candidates_max, tr_error *err)
{
    pass p = {.savings = calloc(TR_TERMS_MAX, sizeof(*p.savings)),
              .candidates = calloc(candidates_max, sizeof(*p.candidates))};
    bool found = p.savings != NULL && p.candidates != NULL;
    tr_status status =
        found ? TR_OK : tr_fail(err, TR_E_NOMEM, "no memory for a search of placements");

    for (uint32_t i = 0; found && i < PASSES_MAX; i++) {
        p.count = 0;
        for (uint32_t at = 0; at < s->cases_count; at++)
            collect(s, at, &p);
        found = make_edits(s, &p) > 0;
    }
    if (status == TR_OK && search_given_up(s))
        status = tr_fail(err, TR_E_CANCELED, "the search was given up");
    free(p.savings);
    free(p.candidates);
    return status;
}

/* -- what came of it -- */

/* Predicts from the steps that were not looked at, and lists what differs. */
static void search_report(const search *s, tr_rebalance *out)
{
    out->steps = UINT32_MAX;
    for (uint32_t i = 0; i < s->cases_count; i++) {
        const layer_case *c = &s->cases[i];
        out->waited_ns += (double)c->load->waited_ns;
        out->before_ns += mean_time(c, 1, c->before);
        out->after_ns += mean_time(c, 1, c->holders);
        out->steps = c->steps_count / 2 < out->steps ? c->steps_count / 2 : out->steps;
        for (uint32_t e = 0; e < c->experts_count; e++) {
            if (c->before[e] == c->holders[e])
                continue;
            bool left = (c->before[e] & c->holders[e]) == 0;
            uint32_t added = (uint32_t)__builtin_popcount(c->holders[e] & ~(uint32_t)c->before[e]);
            out->moves += left;
            out->replicas += added - left;
            out->bytes += added * c->load->expert_bytes;
            out->edits[out->edits_count++] = (tr_rebalance_edit){.layer = (uint16_t)c->number,
                                                                 .expert = (uint16_t)e,
                                                                 .before = c->before[e],
                                                                 .after = c->holders[e]};
        }
    }
    out->steps = s->cases_count > 0 ? out->steps : 0;
}

tr_status tr_rebalance_plan(tr_rebalance *out, tr_plan *plan, const tr_load *load,
                            const _Atomic bool *given_up, tr_error *err)
{
    search s = {.given_up = given_up};
    tr_plan edited = {0};
    size_t experts = 0;

    *out = (tr_rebalance){.step_ns = load->step_ns};
    for (uint32_t l = 0; l < plan->shape.layers_count; l++)
        experts += plan->shape.experts[l];
    out->edits = calloc(experts + 1, sizeof(*out->edits));
    if (out->edits == NULL)
        return tr_fail(err, TR_E_NOMEM, "no memory for a search of placements");
    tr_status status = tr_plan_copy(&edited, plan, err);
    if (status == TR_OK)
        status = search_begin(&s, &edited, plan, load, err);
    if (status == TR_OK)
        status = search_run(&s, experts + 1, err);
    if (status == TR_OK) {
        search_report(&s, out);
        out->costs_assumed = s.costs_assumed;
        tr_plan kept = *plan;
        *plan = edited;
        edited = kept;
    } else {
        tr_rebalance_free(out);
    }
    search_free(&s);
    tr_plan_free(&edited);
    return status;
}

double tr_rebalance_gain(const tr_rebalance *r)
{
    /* The step holds its feed-forwards, whatever was measured when. */
    double whole = fmax(r->step_ns, r->before_ns);
    return whole > 0 ? (r->before_ns - r->after_ns) / whole : 0;
}

void tr_rebalance_free(tr_rebalance *r)
{
    free(r->edits);
    r->edits = NULL;
    r->edits_count = 0;
}
