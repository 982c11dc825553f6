"""How long jobs take, learnt from those that have ended; and the guard where that is too little."""
