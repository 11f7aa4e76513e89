"""The client: one runs at each hospital, beside its data."""

from fairmean.flower import client_app

from task import load_data, make_model

app = client_app(make_model, load_data)
