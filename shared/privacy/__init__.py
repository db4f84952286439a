"""Events, accounting, PATE analysis, the planner's arithmetic and the ledger."""
