"""An audit as text, for the screen of the site that made it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from patevolve.shared.privacy.site_only import BADGE


def text(found: Mapping[str, Any]) -> str:
    """Return the audit as text for the site's own screen."""
    lines = [f"Audit [{BADGE}: it reads private records and was not charged]", ""]
    lines += ["Noise in the stored answers (mean square found / promised; 1 is right)"]
    lines += [
        f"  {row['site']:<24} {_number(row['ratio'])} over {row['values']} values, p = {_number(row['p'])}; "
        f"half noise would be found with probability {_number(row['power_half'])}"
        for row in found["answers"]
    ]
    lines += ["", *_canary_lines(found["canary"]), *_one_run_lines(found["one_run"])]
    lines += ["", *_attack_lines(found["membership"]), "", *_attribute_lines(found["attributes"])]
    lines += [*_inversion_lines(found["inversion"]), ""]
    copying_found = found["copying"]
    copies, near = copying_found["copies"], copying_found["nearness"]
    lines += [
        f"Copies of private records: {copies['found']} (by chance {copies['expected']:.2g}, p = {copies['p']:.2g})"
    ]
    if near is not None:
        lines += [
            f"Median distance to the release: private {near['private']:.3g}, held-out {near['held_out']:.3g}",
            f"  ratio {near['ratio']:.3f} (1 is even)",
            f"  {copying_found['caveat']}",
        ]
    lines += [
        f"The most repeated record is held by {found['repeats']['most']} units, the next by {found['repeats']['next']}"
    ]
    lines += ["", *([f"ALARM: {alarm}" for alarm in found["alarms"]] or ["No alarm. That proves nothing by itself."])]
    return "\n".join(lines)


def _number(value: float | None) -> str:
    return "not known" if value is None else f"{value:.3g}"


def _canary_lines(canary: Mapping[str, Any] | None) -> list[str]:
    if canary is None:
        return ["A planted record in two worlds: left out (--trials 0)"]
    return [
        f"A planted record in two worlds, {canary['trials']} whole runs of public records counted in each",
        f"  found in {canary['hit']['value']:.3f} of the runs with it, in {canary['false']['value']:.3f} without it",
        f"  so ε >= {canary['lower']:.3f} (any mechanism), >= {canary['lower_gaussian']:.3f} (Gaussian)",
        f"  at confidence {canary['confidence']:g}; the ledger says at most {canary['ledger']:.3f}",
    ]


def _attack_lines(attacks: list[dict[str, Any]]) -> list[str]:
    if not attacks:
        return ["Membership inference: not measured; it needs records that took no part (--held-out)"]
    first = attacks[0]
    lines = [
        f"Membership inference: {first['members']} members against {first['others']} others, 95 % intervals",
        "  chance is AUC 0.5 and TPR = FPR",
    ]
    for one in attacks:
        auc = one["auc"]
        parts = [f"  {one['name']:<24} AUC {auc['value']:.3f} ({auc['low']:.3f} to {auc['high']:.3f})"]
        for low in one["low"]:
            tpr = low["tpr"]
            parts.append(
                f"TPR at {100 * low['fpr']:g} % FPR {tpr['value']:.3f} ({tpr['low']:.3f} to {tpr['high']:.3f})"
            )
            if low["real"] == 0.0:
                parts[-1] += ", none of the others allowed: too few to tell"
        parts.append(f"{one['above']} members above all others (by chance {one['expect']:.1f})")
        lines.append("; ".join(parts))
    return lines


def _one_run_lines(one: Mapping[str, Any] | None) -> list[str]:
    if one is None:
        return []
    return [
        f"Many canaries in one run: {one['right']} of {one['guesses']} guesses right, {one['canaries']} planted",
        f"  so ε >= {one['lower']:.3f} at confidence {one['confidence']:g}; the ledger says {one['ledger']:.3f}",
        f"  a smoke test: had every guess been right, it would have said {one['reach']:.3f}",
    ]


def _attribute_lines(guesses: list[dict[str, Any]]) -> list[str]:
    if not guesses:
        return []
    most = max(guesses, key=lambda one: float(one["z"]))
    mean = sum(one["gain"] for one in guesses) / len(guesses)
    lines = ["Attribute inference: a cell guessed from all others by the release; members should gain nothing"]
    lines += [
        f"  {one['column']:<24} right for {one['members']:.3f} of members, {one['others']:.3f} of others "
        f"(usual level {one['usual']:.3f})"
        for one in guesses
    ]
    return [*lines, f"  mean gain {mean:+.3f}; largest at {most['column']}, {most['z']:+.1f} standard errors", ""]


def _inversion_lines(found: list[dict[str, Any]]) -> list[str]:
    lines = ["Inversion by a linear decoder of public samples: records picked out of a line-up by what was rebuilt"]
    for one in found:
        hit = one["found"]
        lines.append(
            f"  {one['name']:<42} {hit['value']:.3f} ({hit['low']:.3f} to {hit['high']:.3f}) of {one['records']}, "
            f"chance {one['chance']:.3f}; explains {one['explained']:.2f} of the variance"
        )
    return lines
