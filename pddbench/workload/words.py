"""Common English words, each one token (with its leading space) in the widely used BPE vocabularies.

Text prompts are made of them so that word counts stay token counts and prefixes survive the joins. What an endpoint
really counts is read from its `usage` and reported beside the plan.
"""

WORDS: tuple[str, ...] = tuple(
    (
        "the of and to in is it you that he was for on are with as his they be at one have this from or had "
        "by hot but some what there we can out other were all your when up use word how said an each she "
        "which do their time if will way about many then them would write like so these her long make thing "
        "see him two has look more day could go come did my sound no most number who over know water than "
        "call first people may down side been now find any new work part take get place made live where "
        "after back little only round man year came show every good me give our under name very through just "
        "form much great think say help low line before turn cause same mean differ move right boy old too "
        "does tell set three want air well also play small end put home read hand port large spell add even "
        "land here must big high such follow act why ask men change went light kind off need house try us "
        "again animal point mother world near build self earth father head stand own page should country "
        "found answer school grow study still learn plant cover food sun four state keep eye never last let "
        "thought city tree cross farm hard start might story saw far sea draw left late run while press "
        "close night real life few north open seem together next white children begin got walk example ease "
        "paper"
    ).split()
)
