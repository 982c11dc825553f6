"""Fast scheduling by counts of free nodes or cores, for simulations of long traces and for replays in forecasts."""
