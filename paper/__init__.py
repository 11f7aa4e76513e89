"""The paper's tables, figures and claims, and the evidence over many draws: a user of fairmean like any other."""
