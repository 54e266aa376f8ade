/* rows.c - norms and elementwise operations. */
#include "kernels/ref/ref.h"

static double ref_sum_of_squares(const float *x, uint32_t N)
{
    double sum = 0;

    for (uint32_t d = 0; d < N; d++)
        sum += (double)x[d] * x[d];
    return sum;
}

void tr_ref_rms_norm(tr_team *team, float *out, const float *x, const float *weight, float eps,
                     uint32_t T, uint32_t D)
{
    (void)team;
    for (uint32_t t = 0; t < T; t++, x += D, out += D) {
        double rms = sqrt(ref_sum_of_squares(x, D) / D + eps);
        for (uint32_t d = 0; d < D; d++)
            out[d] = (float)(x[d] / rms * weight[d]);
    }
}

void tr_ref_layer_norm(tr_team *team, float *x, size_t ld, const float *weight, const float *bias,
                       float eps, uint32_t T, uint32_t D)
{
    (void)team;
    for (uint32_t t = 0; t < T; t++, x += ld) {
        double mean = 0, variance = 0;
        for (uint32_t d = 0; d < D; d++)
            mean += x[d];
        mean /= D;
        for (uint32_t d = 0; d < D; d++)
            variance += (x[d] - mean) * (x[d] - mean);
        double deviation = sqrt(variance / D + eps);
        for (uint32_t d = 0; d < D; d++)
            x[d] = (float)((x[d] - mean) / deviation * weight[d] + bias[d]);
    }
}

void tr_ref_head_norm(tr_team *team, float *x, size_t ld, const float *weight, float eps,
                      const float *gate, size_t ld_gate, uint32_t heads, uint32_t head_dim,
                      uint32_t T)
{
    (void)team;
    for (uint32_t t = 0; t < T; t++) {
        for (uint32_t h = 0; h < heads; h++) {
            float *row = x + t * ld + (size_t)h * head_dim;
            double rms = sqrt(ref_sum_of_squares(row, head_dim) / head_dim + eps);
            for (uint32_t d = 0; d < head_dim; d++) {
                double y = row[d] / rms * weight[d];
                if (gate != NULL)
                    y *= ref_sigmoid(gate[t * ld_gate + (size_t)h * head_dim + d]);
                row[d] = (float)y;
            }
        }
    }
}

void tr_ref_group_norm(tr_team *team, float *out, const float *x, const float *weight, float eps,
                       uint32_t groups, uint32_t T, uint32_t D)
{
    for (uint32_t t = 0; t < T; t++) {
        for (uint32_t g = 0; g < groups; g++, x += D, out += D)
            tr_ref_rms_norm(team, out, x, weight + (size_t)g * D, eps, 1, D);
    }
}

void tr_ref_l2_norm(tr_team *team, float *x, size_t ld, uint32_t heads, uint32_t head_dim,
                    float eps, float scale, uint32_t T)
{
    (void)team;
    for (uint32_t t = 0; t < T; t++) {
        for (uint32_t h = 0; h < heads; h++) {
            float *row = x + t * ld + (size_t)h * head_dim;
            double norm = sqrt(ref_sum_of_squares(row, head_dim) + eps);
            for (uint32_t d = 0; d < head_dim; d++)
                row[d] = (float)(row[d] / norm * scale);
        }
    }
}

void tr_ref_row_exponent(tr_team *team, int32_t *exponent, const float *x, uint32_t T, uint32_t D)
{
    (void)team;
    for (uint32_t t = 0; t < T; t++, x += D) {
        double max = 0;
        bool finite = true;
        for (uint32_t d = 0; d < D; d++) {
            finite = finite && isfinite(x[d]);
            max = fmax(max, fabs(x[d]));
        }
        int e = -60;
        if (max > 0 && finite)
            frexp(max, &e);
        exponent[t] = !finite ? 127 : e < -60 ? -60 : e;
    }
}

void tr_ref_silu_mul(tr_team *team, float *out, const float *gate, const float *up, size_t ld,
                     float limit, uint32_t T, uint32_t N)
{
    (void)team;
    for (uint32_t t = 0; t < T; t++) {
        for (size_t i = t * ld; i < t * ld + N; i++) {
            double g = gate[i] > limit ? limit : gate[i];
            double u = up[i] > limit ? limit : up[i] < -limit ? -limit : up[i];
            out[i] = (float)(g * ref_sigmoid(g) * u);
        }
    }
}

/* |x| to the nearest number of `bits` mantissa bits and exponents from `low` on, ties to even. */
static double ref_round(double x, int bits, int low, double largest)
{
    int e;

    frexp(x, &e); /* x < 2^e */
    e = (e - 1 < low ? low : e - 1) - bits;
    x = ldexp(nearbyint(ldexp(x, -e)), e);
    return x < largest ? x : largest;
}

void tr_ref_round_nvfp4(tr_team *team, float *out, size_t ld_out, const float *x, size_t ld_x,
                        const uint32_t *rows, float scale, uint32_t T, uint32_t N)
{
    (void)team;
    for (uint32_t t = 0; t < T; t++) {
        const float *in = x + (rows != NULL ? rows[t] : t) * ld_x;
        for (uint32_t n = 0; n < N; n += 16) {
            float *y = out + t * ld_out + n, max = 0;
            bool finite = true;
            for (uint32_t i = n; i < n + 16; i++) {
                finite &= isfinite(in[i]) != 0;
                max = fabsf(in[i]) > max ? fabsf(in[i]) : max;
            }
            float p = max / (6 * scale);
            float step = (float)ref_round(p, 3, -6, 448) * scale;
            if (p == 0)
                step = scale;
            for (uint32_t i = 0; i < 16; i++) {
                float x_i = in[n + i];
                double magnitude = step > 0 ? ref_round(fabsf(x_i / step), 1, 0, 6) : 0;
                y[i] = finite ? (float)copysign(magnitude, x_i) * step : NAN;
            }
        }
    }
}

void tr_ref_sigmoid_mul(tr_team *team, float *out, const float *x, size_t ld_x, const float *gate,
                        size_t ld_gate, uint32_t T, uint32_t N)
{
    (void)team;
    for (uint32_t t = 0; t < T; t++)
        for (uint32_t n = 0; n < N; n++)
            out[t * ld_x + n] = (float)(x[t * ld_x + n] * ref_sigmoid(gate[t * ld_gate + n]));
}

void tr_ref_sigmoid_scale(tr_team *team, float *x, size_t ld, float scale, uint32_t T, uint32_t N)
{
    (void)team;
    for (uint32_t t = 0; t < T; t++)
        for (uint32_t n = 0; n < N; n++)
            x[t * ld + n] = (float)(scale * ref_sigmoid(x[t * ld + n]));
}
